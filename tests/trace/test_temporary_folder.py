"""Temporary folders of a run go with it, or with the next one, and those of a live run stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ronde.trace.run_directory import new_run_id
from ronde.trace.temporary_folder import TemporaryFolder, TemporaryFolders, remove_dead

HOLD = """
import sys, tempfile
from ronde.trace.temporary_folder import TemporaryFolder
print(TemporaryFolder.hold(sys.argv[1]).path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def holder(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process, and the folder that it holds."""
    command = [sys.executable, "-c", HOLD, new_run_id()]
    with subprocess.Popen(
        command, env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.kill()


def no_run_lives(_: str) -> bool:
    return False


def test_it_is_removed_with_all_that_it_holds(temporary: Path) -> None:
    folder = TemporaryFolder.hold(new_run_id())
    closed = Path(folder.path, "closed")
    closed.mkdir()
    (closed / "file").write_text("x")
    (temporary / "elsewhere").mkdir(0o750)
    (closed / "link").symlink_to(temporary / "elsewhere")
    closed.chmod(0o500)
    folder.remove()
    assert os.listdir(temporary) == ["elsewhere"]
    assert (temporary / "elsewhere").stat().st_mode & 0o777 == 0o750


def test_what_a_killed_process_held_is_removed_by_the_next(
    temporary: Path, holder: tuple[subprocess.Popen[str], str]
) -> None:
    process, path = holder
    Path(path, "checkpoint").write_text("x")
    remove_dead(no_run_lives)
    assert Path(path, "checkpoint").exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    remove_dead(lambda _: True)
    assert Path(path, "checkpoint").exists()
    asked: list[str] = []
    remove_dead(lambda run_id: bool(asked.append(run_id)))
    assert os.listdir(temporary) == []
    assert [f"ronde-{run_id}-" in path for run_id in asked] == [True]


def test_what_is_no_folder_of_a_run_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = new_run_id()
    (temporary / "ronde-verify-abc").mkdir()
    (temporary / f"ronde-{run_id}-file").write_text("x")
    (temporary / f"ronde-{run_id}-link").symlink_to(temporary / "ronde-verify-abc")
    remove_dead(no_run_lives)
    assert len(os.listdir(temporary)) == 3
    other = temporary / f"ronde-{run_id}-other"
    other.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 12345)
        remove_dead(no_run_lives)
    assert other.exists()
    remove_dead(no_run_lives)
    assert not other.exists()


def test_where_a_rank_makes_its_folders(temporary: Path) -> None:
    given = temporary / "given"
    given.mkdir()
    assert Path(TemporaryFolders(str(given), "run").new()).parent == given
    given.rename(temporary / "gone")
    for run_id in (new_run_id(), ""):
        path = Path(TemporaryFolders(str(given), run_id).new())
        assert path.parent == temporary
        remove_dead(no_run_lives)  # this process lives, and holds it
        assert path.is_dir()
