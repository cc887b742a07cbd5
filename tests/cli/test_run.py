"""`ronde run`: what it decides and what it refuses, before any rank is started."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ronde.cli import entry, run
from ronde.launch.job import LaunchJob, Outcome
from ronde.launch.run_end import Explain


class Seen:
    """The job that would have been launched."""

    job: LaunchJob | None = None


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Seen:
    seen = Seen()

    def launch(job: LaunchJob, hosts: None, explain: Explain, is_to_end: None) -> Outcome:
        seen.job = job
        job.run_directory.release()
        return Outcome(exit_code=4)

    monkeypatch.setattr(run, "launch", launch)
    monkeypatch.setattr(run, "available_cores", lambda: 8)
    monkeypatch.setattr(run, "torch_has_cuda", lambda: True)
    monkeypatch.setattr(run, "cuda_devices", lambda _environment: ())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("OMP_NUM_THREADS", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "RONDE_HOSTS", "RONDE_HOSTFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")
    return seen


def _code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_of:
        entry.main(["run", *arguments])
    assert isinstance(exit_of.value.code, int)
    return exit_of.value.code


def test_everything_behind_the_script_is_the_scripts(seen: Seen) -> None:
    assert _code("--ranks", "2", "train.py", "--ranks", "7", "--help", "--", "-m", "x") == 4
    assert seen.job is not None
    assert seen.job.ranks == 2
    assert seen.job.run.arguments == ("--ranks", "7", "--help", "--", "-m", "x")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--durability", "log"), "--durability log is for parameter servers, and plan ddp has none"),
        (("--server-state", "old"), "--server-state old is for parameter servers, and plan ddp has none"),
        (
            ("--plan", "ps", "--servers", "tcp://127.0.0.1:4000", "--durability", "none"),
            "--durability none is for servers that ronde run starts, and these were started by hand",
        ),
        (
            ("--plan", "hybrid", "--servers", "tcp://127.0.0.1:4000", "--server-state", "old"),
            "--server-state old is for servers that ronde run starts, and these were started by hand",
        ),
    ],
)
def test_options_of_servers_without_servers_are_refused(
    arguments: tuple[str, ...], words: str, seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _code(*arguments, "train.py") == 2
    assert words in capsys.readouterr().err.replace("\n", " ")


def test_options_of_servers(seen: Seen) -> None:
    assert _code("--plan", "ps", "--durability", "log,sync=group", "--server-state", "old", "train.py") == 4
    assert seen.job is not None
    assert (seen.job.run.durability, seen.job.run.durability_sync) == ("log", "group")
    assert seen.job.run.server_state.endswith("/old")


def test_a_module(seen: Seen) -> None:
    assert _code("-m", "json.tool", "--indent", "2") == 4
    assert seen.job is not None
    run = seen.job.run
    assert (run.script, run.module, run.arguments) == (
        "json.tool",
        True,
        ("--indent", "2"),
    )


def test_start_line_says_what_was_decided(seen: Seen, capfd: pytest.CaptureFixture[str]) -> None:
    _code("--ranks", "2", "--seed", "5", "--rng", "global", "--plan", "bucket-mb=10", "train.py")
    assert seen.job is not None
    assert seen.job.run.seed == 5
    assert capfd.readouterr() == (
        "",
        f"ronde: seed 5, 2 ranks on cpu, 4 threads each, plan {seen.job.run.plan}, "
        f"run directory {seen.job.run_directory.path}\n",
    )
    assert sorted(seen.job.run.plan.split(",")) == ["bucket-mb=10", "rng=global"]


def test_another_launchers_line_is_read_and_said(seen: Seen, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("--num_processes", "2", "--use_fsdp", "python", "train.py", "--num_processes", "9")
    assert _code(*words) == 4
    assert seen.job is not None
    assert (seen.job.ranks, seen.job.run.plan) == (2, "state=zero3")
    assert seen.job.run.arguments == ("--num_processes", "9")
    said = "ronde: note[R140]: read as: ronde run --plan zero3 --ranks 2 train.py --num_processes 9\n"
    assert capfd.readouterr().err.startswith(said)
    assert _code("-q", "-n", "2", "train.py") == 4
    assert capfd.readouterr() == ("", "")


def test_the_start_line_says_what_a_name_stands_for(seen: Seen, capfd: pytest.CaptureFixture[str]) -> None:
    assert _code("--plan", "fsdp", "--ranks", "2", "train.py") == 4
    assert "plan state=zero3 (fsdp is zero3), run directory" in capfd.readouterr().err


def test_quiet_says_nothing(seen: Seen, capfd: pytest.CaptureFixture[str]) -> None:
    assert _code("--quiet", "train.py") == 4
    assert seen.job is not None
    assert seen.job.run.quiet
    assert capfd.readouterr() == ("", "")


def test_auto_on_a_cpu_host_is_one_rank_and_says_why(seen: Seen, capfd: pytest.CaptureFixture[str]) -> None:
    _code("train.py")
    assert seen.job is not None
    assert seen.job.ranks == 1
    said = capfd.readouterr().err
    assert (
        f"seed {seen.job.run.seed}, 1 rank on cpu (one process already uses all 8 cores; --ranks N for more)"
        in said
    )


def test_auto_takes_every_device(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "cuda_devices", lambda _environment: ("0", "1", "2"))
    _code("train.py")
    assert seen.job is not None
    assert (seen.job.ranks, seen.job.devices) == (3, ("0", "1", "2"))


def test_a_seed_is_drawn_anew_for_each_run(seen: Seen) -> None:
    seeds: set[int] = set()
    for _ in range(3):
        _code("train.py")
        assert seen.job is not None
        seeds.add(seen.job.run.seed)
    assert len(seeds) > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope.py"], "there is no script 'nope.py' in "),
        (["-"], "a script from stdin cannot be read by every rank; save it to a file"),
        (["-m", "no_such_module.main"], "there is no module 'no_such_module.main'"),
        (["--ranks", "0", "train.py"], "--ranks 0 is neither a number from 1 nor auto"),
        (["--ranks", "two", "train.py"], "--ranks two is neither a number from 1 nor auto"),
        (["--loading", "lazy", "train.py"], "loading"),
        (["--plan", "zero9", "train.py"], "zero9"),
    ],
)
def test_mistakes(seen: Seen, capfd: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert _code(*arguments) == 2
    assert seen.job is None
    assert message in capfd.readouterr().err


def test_more_ranks_than_devices(monkeypatch: pytest.MonkeyPatch, seen: Seen, capfd: Any) -> None:
    from ronde.launch.launcher import launch

    monkeypatch.setattr(run, "launch", launch)
    monkeypatch.setattr(run, "cuda_devices", lambda _environment: ("0",))
    assert _code("--ranks", "2", "train.py") == 2
    assert (
        "2 ranks need 2 CUDA devices, one each, but this host offers 1 (0); use --ranks 1"
        in capfd.readouterr().err
    )
    assert seen.job is None


def test_a_syntax_error_is_pythons_own_message(seen: Seen, tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "bad.py").write_text("x = 1\ndef f(:\n    pass\n")
    assert _code("bad.py") == 1
    assert seen.job is None
    said = capfd.readouterr().err
    assert said.startswith('  File "bad.py", line 2\n    def f(:\n')
    assert said.count("SyntaxError") == 1
    assert "ronde" not in said


def test_contradiction_with_torchrun(seen: Seen, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    rest = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
    for name, value in {**place, **rest}.items():
        monkeypatch.setenv(name, value)
    assert _code("--ranks", "3", "train.py") == 2
    assert "--ranks 3 contradicts torchrun, which has started 2; leave it out" in capfd.readouterr().err
    assert seen.job is None


def test_other_systems_are_refused(seen: Seen, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert _code("train.py") == 1
    assert "ronde runs on Linux only for now, not on darwin" in capfd.readouterr().err
    assert seen.job is None


def test_importing_the_command_loads_no_torch() -> None:
    import subprocess

    code = "import sys, ronde.cli.run; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ), timeout=20)


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would have been launched on hosts."""
    found: list[Any] = []

    def launch(job: LaunchJob, hosts: Any, explain: Explain, is_to_end: None) -> Outcome:
        found.append(hosts)
        job.run_directory.release()
        return Outcome(exit_code=5)

    monkeypatch.setattr(run, "launch", launch)
    return found


def test_hosts(seen: Seen, hosts: list[Any], capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--ssh-port", "2222", "--env", "A,B=1,2", "--env", "C=x=y", "--local-addr", "10.0.0.1"]
    assert _code("-H", "a:2,b:2", "--ranks", "3", *options, "train.py") == 5
    (where,) = hosts
    assert where.shares == (("a", 2), ("b", 1))
    assert (where.way.command, where.way.port, where.always) == (("ssh",), 2222, False)
    assert where.variables == ("A", "B=1,2", "C=x=y")
    assert where.local_address == "10.0.0.1"
    assert "3 ranks on a:2, b:1 (from -H), plan ddp" in capfd.readouterr().err


def test_the_nodes_of_an_allocation(
    seen: Seen, hosts: list[Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    allocation = {"JOB_ID": "1", "JOB_NUM_NODES": "2", "JOB_NODELIST": "n[1-2]", "NTASKS_PER_NODE": "2"}
    for name, value in {**allocation, "TASKS_PER_NODE": "2(x2)"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert _code("train.py") == 5
    assert hosts[0].shares == (("n1", 2), ("n2", 2))
    assert hosts[0].way.kind == "srun"
    assert "4 ranks on n1:2, n2:2 (from Slurm's allocation)" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--ssh-port", "22"),
            ("--ssh-port applies to other hosts, and none is named; add -H host1:2,host2:2"),
        ),
        (("--env", "A,B=1"), "ranks on this host inherit its variables; write B=1 before ronde"),
        (("-x", "B=1"), "ranks on this host inherit its variables; write B=1 before ronde"),
        (("-H", "a", "--env", "1=2"), "--env 1=2: '1=2' is not a variable"),
        (("-H", "a", "--ssh-command", ""), "--ssh-command is empty"),
        (("-H", "a", "--local-addr", "a"), "--local-addr a is not an IP address"),
        (("-H", "a:1", "--ranks", "2"), "--ranks 2 is more than the 1 slots of a:1"),
    ],
)
def test_mistakes_about_hosts(seen: Seen, capfd: Any, arguments: tuple[str, ...], message: str) -> None:
    assert _code(*arguments, "train.py") == 2
    assert message in capfd.readouterr().err


@pytest.mark.parametrize("plan", ["tensor=2", "pipeline=2", "context=2", "expert=2"])
def test_a_cut_model_is_saved_and_published(seen: Seen, tmp_path: Path, plan: str) -> None:
    saved = str(tmp_path / "saved")
    assert _code("--ranks", "2", "--plan", plan, "--checkpoint", saved, "--publish", "1", "train.py") == 4
    assert seen.job is not None
    assert (seen.job.run.plan, seen.job.run.checkpoint, seen.job.run.publish) == (plan, saved, 1.0)


def test_torchruns_own_settings_start_torchrun(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def execv(_path: str, words: list[str]) -> None:
        started.append(words)
        raise SystemExit(0)

    monkeypatch.setattr(run.os, "execv", execv)
    monkeypatch.setenv("PET_NNODES", "2")
    monkeypatch.setattr(sys, "argv", ["ronde", "run", "train.py"])
    assert _code("train.py") == 0
    assert started[0][1:] == ["-m", "torch.distributed.run", "-m", "ronde", "run", "train.py"]


def test_this_host_alone_needs_no_agent(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"JOB_ID": "1", "JOB_NUM_NODES": "2", "JOB_NODELIST": "n[1-2]"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert _code("-H", "localhost:3", "train.py") == 4
    assert seen.job is not None
    assert seen.job.ranks == 3
