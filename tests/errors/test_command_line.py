"""Mistakes on the command line: what the user reads, word by word, and no rank is started."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from errors.normal import normal
from ronde.cli import app, entry, run
from ronde.cluster import torch_install
from ronde.trace import run_directory

KEYS = (
    "data, tensor, pipeline, context, expert, tensor-cuts, context-attention, "
    "sequence-parallel, "
    "state, sparse, servers, offload, "
    "algorithm, compressor, compressed, error-feedback, density, threshold, low-rank, reduction, predivide, "
    "bucket-mb, update, every, adaptive, peers, warm-up, staleness, optimizer-on, precision, "
    "micro-batches, recompute, schedule, compile, rng, batch-dim, loading"
)
PRESETS = (
    "ddp, hierarchical, central, zero1, zero2, zero3, ps, ps-async, ps-bounded, geo, local-sgd, dgc, onebit, "
    "twobit, bytegrad, qadam, powersgd, fp16-allreduce, decentralized, decentralized-lowprec, async-average, "
    "hybrid"
)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any) -> Any:
    """`told(*words)`: the exit code of `ronde WORDS` in a folder of a few files, and what it says."""

    def launch(*_: object) -> None:
        raise AssertionError("no rank may be started")

    monkeypatch.setattr(run, "launch", launch)
    monkeypatch.setattr(run, "cuda_devices", lambda _environment: ())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "bad.py").write_text("x = 1\ndef f(:\n    pass\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "fit.py").touch()

    def tell(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as exit_of:
            entry.main(words)
        out, err = capfd.readouterr()
        assert out == ""
        assert isinstance(exit_of.value.code, int)
        return exit_of.value.code, normal(err, tmp_path)

    return tell


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "trian.py",
            "there is no script 'trian.py' in DIR (did you mean train.py?); ronde's own options go before it",
        ),
        (
            "train",
            "there is no script 'train' in DIR (did you mean train.py?); ronde's own options go before it",
        ),
        (
            "project/fitt.py",
            "there is no script 'project/fitt.py' in DIR (did you mean project/fit.py?); ronde's own options "
            "go before it",
        ),
        (
            "src/train.py",
            "there is no script 'src/train.py' in DIR (nor a folder 'src'); ronde's own options go before it",
        ),
        ("8", "there is no script '8' in DIR; ronde's own options go before it"),
        (
            "project",
            "project is a folder without a __main__.py; name the script in it, such as project/fit.py",
        ),
        ("empty", "empty is a folder without a __main__.py; name the script in it"),
        ("-", "a script from stdin cannot be read by every rank; save it to a file"),
        ("/dev/null", "/dev/null is not a file that every rank can read; save the script to one"),
        (
            "-m pdb train.py",
            "-m pdb would step through every rank by itself; write breakpoint() into the script, which opens "
            "on rank 0, or debug in plain python: python -m pdb SCRIPT",
        ),
        ("-m jsonn.tool", "there is no module 'jsonn.tool'; with a path, leave -m out: ronde run PATH"),
        ("-m train.py", "train.py is a path, not a module; leave -m out: ronde run train.py"),
        ("--ranks 0 train.py", "--ranks 0 is neither a number from 1 nor auto; try --ranks 2"),
        ("--ranks -1 train.py", "--ranks -1 is neither a number from 1 nor auto; try --ranks 2"),
        ("--ranks abc train.py", "--ranks abc is neither a number from 1 nor auto; try --ranks 2"),
        ("--timeout 0 train.py", "--timeout 0 is not a number of seconds above 0; try --timeout 1800"),
        ("--plan dpp train.py", f"unknown preset 'dpp' (did you mean ddp?); presets are {PRESETS}"),
        (
            "--plan ddp,buket-mb=3 train.py",
            f"unknown key 'buket-mb' in a plan (did you mean bucket-mb?); keys are {KEYS}",
        ),
        (
            "--plan bucket-mb=big train.py",
            "bucket-mb=big is not a value of bucket-mb; write a number above 0, or auto",
        ),
        (
            "--plan rng=globl train.py",
            "rng=globl is not a value of rng (did you mean global?); write one of auto, global, per-rank",
        ),
        (
            "--loading slice train.py",
            "loading=slice is not a value of loading (did you mean sliced?); write one of auto, sliced, full",
        ),
        (
            "--plan context=2,compile=true train.py",
            "context=2 with compile=true is not available in this version; nearest legal: context=2,"
            "compile=false",
        ),
        (
            "--plan zero3,offload=all --ranks 2 train.py",
            "offload=all moves state from a CUDA device to host memory, and these ranks are on the CPU: "
            "their state is there already; leave offload=all out",
        ),
        (
            "--plan nope.toml train.py",
            "plan file nope.toml cannot be read: No such file or directory; give a TOML file",
        ),
        *(
            (
                f"--servers {endpoints} train.py",
                f"--servers {endpoints} is neither a number nor a list of endpoints such as "
                "tcp://10.0.0.5:4000; try --servers 2",
            )
            for endpoints in ("10.0.0.5:4000", "tcp://10.0.0.5", "tcp://10.0.0.5:99999")
        ),
        (
            "--servers tcp://a:1,tcp://a:1 train.py",
            "--servers tcp://a:1,tcp://a:1 names one server twice; give each server its own endpoint",
        ),
    ],
)
def test_mistakes(told: Any, words: str, expected: str) -> None:
    assert told("run", *words.split()) == (2, f"ronde: error: {expected}\n")


def test_an_unknown_option(told: Any) -> None:
    """The first words are the parser's, and change with its version."""
    own = "the script's own options go behind it; see ronde"
    for words, expected in {
        ("run", "--frobnicate", "train.py"): f"no such option: --frobnicate.*; {own} run --help",
        ("verify", "--rank", "2", "train.py"): f"no such option: --rank .*--ranks.*; {own} verify --help",
        ("bench", "dp", "--frobnicate"): "no such option: --frobnicate.*; see ronde bench dp --help",
    }.items():
        code, said = told(*words)
        assert code == 2
        assert re.fullmatch(f"ronde: error: {expected}\n", said), said


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run", r"missing argument '\W*SCRIPT\W*'; see ronde run --help"),
        ("run --seed", r"option '--seed' requires an argument; see ronde run --help"),
        ("run --seed x train.py", r"invalid value for '--seed': .*; see ronde run --help"),
        ("verify --ranks 0 train.py", r"invalid value for '--ranks': .*; see ronde verify --help"),
        (
            "plan show ddp zero1",
            r"zero1 is for a script, and none is given; add --script SCRIPT, or leave it out",
        ),
        ("plan shw", r"no such command 'shw'.*; see ronde plan --help"),
        ("rum train.py", r"no such command 'rum'.*; see ronde --help"),
    ],
)
def test_words_that_cannot_be_parsed(told: Any, words: str, expected: str) -> None:
    code, said = told(*words.split())
    assert code == 2
    assert re.fullmatch(f"ronde: error: {expected}\n", said), said


@pytest.mark.parametrize("words", [(), ("plan",), ("bench",)])
def test_no_words_ask_for_the_help(words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        entry.main(words)
    said = "".join(capfd.readouterr())
    assert " ".join(["Usage: ronde", *words, "[OPTIONS] COMMAND [ARGS]..."]) in said
    assert "ronde: error:" not in said


def test_an_interruption_while_the_command_is_imported(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_command: app.Command) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(app.Command, "load", load)
    assert told("verify", "train.py") == (130, "")


def test_the_proof_refuses_alike(told: Any) -> None:
    assert told("verify", "trian.py") == (
        2,
        "ronde: error: there is no script 'trian.py' in DIR (did you mean train.py?); "
        "ronde's own options go before it\n",
    )


def test_a_syntax_error_is_pythons_own(told: Any) -> None:
    assert told("run", "bad.py") == (
        1,
        '  File "bad.py", line 2\n    def f(:\nSyntaxError: invalid syntax\n',
    )
    assert told("verify", "bad.py") == (
        2,  # nothing to compare; 1 is a broken law
        '  File "bad.py", line 2\n    def f(:\nSyntaxError: invalid syntax\n',
    )


@pytest.mark.skipif(sys.platform != "linux", reason="a rule of Linux")
def test_a_script_without_the_right_to_read_it(told: Any, tmp_path: Path, monkeypatch: Any) -> None:
    plain = Path.read_bytes

    def read_bytes(path: Path) -> bytes:  # root may read everything
        if path.name == "train.py":
            raise PermissionError(13, "Permission denied")
        return plain(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert told("run", "train.py") == (
        2,
        "ronde: error: cannot read the script 'train.py': Permission denied; see its owner and rights with "
        "ls -l\n",
    )


def test_more_ranks_than_devices(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ronde.launch.launcher import launch

    monkeypatch.setattr(run, "launch", launch)
    monkeypatch.setattr(run, "torch_has_cuda", lambda: True)
    monkeypatch.setattr(run, "cuda_devices", lambda _environment: ("0", "1"))
    assert told("run", "--ranks", "3", "train.py") == (
        2,
        "ronde: error: 3 ranks need 3 CUDA devices, one each, but this host offers 2 (0, 1); use --ranks 2, "
        'run on the CPU with CUDA_VISIBLE_DEVICES="", or name a device once for each rank that is to share '
        "it (CUDA_VISIBLE_DEVICES=0,1,0), which is slow\n",
    )


def test_another_system(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert told("run", "train.py") == (
        1,
        "ronde: error: ronde runs on Linux only for now, not on darwin\n",
    )


@pytest.mark.parametrize("words", [["run", "train.py"], ["verify", "train.py"], ["bench", "dp"]])
def test_another_system_without_what_only_linux_has(words: list[str]) -> None:
    """Not only its name: a Mac's Python has no real-time signals and no affinity of processes."""
    code = (
        "import os, signal, sys, sysconfig\n"
        "sysconfig.get_config_vars(), sysconfig.get_paths()\n"
        "del signal.SIGRTMIN, signal.SIGRTMAX, os.sched_getaffinity\n"
        "sys.platform = 'darwin'\n"
        "from ronde.cli.entry import main\n"
        f"main({words!r})\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stderr == "ronde: error[R181]: ronde runs on Linux only for now, not on darwin\n"
    assert process.returncode == 1


def test_without_torch(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_install.importlib.util, "find_spec", lambda _name: None)
    assert told("run", "train.py") == (
        1,
        "ronde: error: torch is not installed for PYTHON; install it there: "
        "PYTHON -m pip install 'torch>=2.11'\n",
    )


def test_an_old_torch(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch_install, "torch_version_file", lambda: "__version__ = '2.4.1+cpu'\ncuda = None\n"
    )
    assert told("run", "train.py") == (
        1,
        "ronde: error: torch 2.4.1+cpu is too old, ronde needs 2.11 or newer; install it: "
        "PYTHON -m pip install --upgrade 'torch>=2.11'\n",
    )


def test_a_torch_that_nobody_has_tried(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_install, "torch_version_file", lambda: "__version__ = '9.1.0+cpu'\n")
    _, text = told("verify", "bad.py")
    assert text.startswith(
        "ronde: torch 9.1.0+cpu is newer than 2.15, the newest that this version of ronde was tested "
        "with; if a run fails, install that one: PYTHON -m pip install 'torch<2.16'\n"
    )


def test_a_torch_that_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_install, "torch_version_file", lambda: "__version__ = '2.15.1'\n")
    assert torch_install.newer_than_tried() is None


def test_a_run_directory_that_cannot_be_made(told: Any) -> None:
    assert told("run", "--run-dir", "train.py/x", "train.py") == (
        1,
        "ronde: error: cannot write the run directory DIR/train.py/x: Not a directory; choose another with "
        "--run-dir DIR\n",
    )


def test_a_run_directory_in_use(told: Any, tmp_path: Path) -> None:
    other = run_directory.RunDirectory.create(tmp_path / "logs", {})
    try:
        assert told("run", "--run-dir", "logs", "train.py") == (
            1,
            "ronde: error: the run directory DIR/logs is in use by another run; choose another with "
            "--run-dir DIR\n",
        )
    finally:
        other.release()


def test_no_space_for_logs(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "LEAST_FREE_BYTES", 1 << 62)
    assert told("run", "--run-dir", "logs", "train.py") == (
        1,
        "ronde: error: no space left for the run directory DIR/logs; free some, or take another disk by "
        "--run-dir DIR\n",
    )


def test_ranks_that_somebody_else_has_numbered(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert told("run", "train.py") == (
        2,
        "ronde: error: WORLD_SIZE=4 is set, but not by torchrun, and RANK, MASTER_ADDR, MASTER_PORT missing: "
        "ronde cannot tell who starts the ranks; "
        "start them with `torchrun ... -m ronde run SCRIPT`, or unset WORLD_SIZE and RANK\n",
    )
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert told("run", "train.py") == (
        2,
        "ronde: error: the torchrun environment is incomplete: RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, "
        "MASTER_ADDR, MASTER_PORT missing; unset TORCHELASTIC_RUN_ID to start ranks on this host\n",
    )
