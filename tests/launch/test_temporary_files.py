"""What ranks keep among the temporary files does not outlive the run, however it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from launch.conftest import gone, wait_until

KEEPS = """
import json
kept = pathlib.Path(json.loads(os.environ["FAKE_CONFIG"])["temporary"], f"rank-{rank}")
(kept / "threads").mkdir(parents=True)
(kept / "threads" / "checkpoint").write_text("x")
(kept / "threads").chmod(0o500)
note(f"rank{rank}")
while not all((here / f"rank{each}.pid").exists() for each in (0, 1)):
    time.sleep(0.01)
"""
WAITS = KEEPS + "wait_for_ever()\n"


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def kept(temporary: Path) -> list[str]:
    return sorted(path.parent.parent.name for path in temporary.glob("*/*/threads/checkpoint"))


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError('x')"])
def test_when_the_script_ends(experiment: Any, temporary: Path, end: str) -> None:
    experiment.run(KEEPS + end, TMPDIR=str(temporary))
    assert experiment.pid("rank1")
    assert os.listdir(temporary) == []


@pytest.mark.parametrize("victim", ["launcher", "rank0", "rank1"])
def test_when_it_is_ended(experiment: Any, temporary: Path, victim: str) -> None:
    process = experiment.start(WAITS, TMPDIR=str(temporary))
    pids = {"launcher": process.pid, "rank0": experiment.pid("rank0"), "rank1": experiment.pid("rank1")}
    assert kept(temporary) == ["rank-0", "rank-1"]
    os.kill(pids[victim], signal.SIGTERM if victim == "launcher" else signal.SIGKILL)
    assert experiment.finish(process).code != 0
    assert os.listdir(temporary) == []


def test_when_the_launcher_is_killed_the_next_run_removes_it(experiment: Any, temporary: Path) -> None:
    process = experiment.start(WAITS, TMPDIR=str(temporary))
    ranks = [experiment.pid("rank0"), experiment.pid("rank1")]
    experiment.run_dir = experiment.directory / "next"
    assert experiment.run("print('next')", TMPDIR=str(temporary)).code == 0
    assert kept(temporary) == ["rank-0", "rank-1"]  # those of a run that lives
    process.kill()
    wait_until(lambda: all(map(gone, ranks)), "ranks to die with their launcher")
    experiment.finish(process)
    assert kept(temporary) == ["rank-0", "rank-1"]
    assert experiment.run("print('next')", TMPDIR=str(temporary)).code == 0
    assert os.listdir(temporary) == []


def test_without_room_for_one_it_runs_all_the_same(experiment: Any, temporary: Path) -> None:
    script = """
    import json
    print(repr(json.loads(os.environ["FAKE_CONFIG"])["temporary"]))
    """
    driver = "import tempfile; tempfile.tempdir = '/nowhere'"
    (temporary / "sitecustomize.py").write_text(driver)
    path = os.pathsep.join(filter(None, [str(temporary), os.environ.get("PYTHONPATH")]))
    result = experiment.run(script, PYTHONPATH=path)
    assert (result.code, result.out) == (0, b"''\n")
