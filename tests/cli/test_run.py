"""`ronde run`: what it decides and what it refuses, before any rank is started."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ronde.cli import app, run
from ronde.launch.job import Job, Outcome


class Seen:
    """The job that would have been launched."""

    job: Job | None = None


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Seen:
    seen = Seen()

    def launch(job: Job) -> Outcome:
        seen.job = job
        job.run_directory.release()
        return Outcome(exit_code=4)

    monkeypatch.setattr(run, "launch", launch)
    monkeypatch.setattr(run, "available_cores", lambda: 8)
    monkeypatch.setattr(run, "torch_has_cuda", lambda: True)
    monkeypatch.setattr(run, "cuda_devices", lambda _environment: ())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("OMP_NUM_THREADS", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")
    return seen


def _code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_of:
        app.main(["run", *arguments])
    assert isinstance(exit_of.value.code, int)
    return exit_of.value.code


def test_everything_behind_the_script_is_the_scripts(seen: Seen) -> None:
    assert _code("--ranks", "2", "train.py", "--ranks", "7", "--help", "--", "-m", "x") == 4
    assert seen.job is not None
    assert seen.job.ranks == 2
    assert seen.job.arguments == ("--ranks", "7", "--help", "--", "-m", "x")


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
    assert (seen.job.durability, seen.job.durability_sync) == ("log", "group")
    assert seen.job.server_state.endswith("/old")


def test_a_module(seen: Seen) -> None:
    assert _code("-m", "json.tool", "--indent", "2") == 4
    assert seen.job is not None
    assert (seen.job.script, seen.job.module, seen.job.arguments) == ("json.tool", True, ("--indent", "2"))


def test_start_line_says_what_was_decided(seen: Seen, capfd: pytest.CaptureFixture[str]) -> None:
    _code("--ranks", "2", "--seed", "5", "--rng", "global", "--plan", "bucket-mb=10", "train.py")
    assert seen.job is not None
    assert seen.job.seed == 5
    assert capfd.readouterr() == (
        "",
        f"ronde: seed 5, 2 ranks on cpu, 4 threads each, plan {seen.job.plan}, "
        f"run directory {seen.job.run_directory.path}\n",
    )
    assert sorted(seen.job.plan.split(",")) == ["bucket-mb=10", "rng=global"]


def test_quiet_says_nothing(seen: Seen, capfd: pytest.CaptureFixture[str]) -> None:
    assert _code("--quiet", "train.py") == 4
    assert seen.job is not None
    assert seen.job.quiet
    assert capfd.readouterr() == ("", "")


def test_auto_on_a_cpu_host_is_one_rank_and_says_why(seen: Seen, capfd: pytest.CaptureFixture[str]) -> None:
    _code("train.py")
    assert seen.job is not None
    assert seen.job.ranks == 1
    said = capfd.readouterr().err
    assert (
        f"seed {seen.job.seed}, 1 rank on cpu (one process already uses all 8 cores; --ranks N for more)"
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
        seeds.add(seen.job.seed)
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
    from ronde.launch.local import launch

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
