"""The run directory: where it is made, who holds it, and what it says when it cannot be made."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ronde.errors import LaunchError
from ronde.trace import run_directory
from ronde.trace.run_directory import RunDirectory, default_root, prune


def test_default_place_is_the_users_state_directory(tmp_path: Path) -> None:
    assert default_root({"HOME": "/home/ada"}) == Path("/home/ada/.local/state/ronde/runs")
    assert default_root({"HOME": "/home/ada", "XDG_STATE_HOME": "/var/state"}) == Path(
        "/var/state/ronde/runs"
    )
    assert default_root({"HOME": "/home/ada", "XDG_STATE_HOME": "relative"}) == default_root(
        {"HOME": "/home/ada"}
    )
    made = RunDirectory.create(None, {"HOME": str(tmp_path)})
    assert made.path == tmp_path / ".local/state/ronde/runs" / made.run_id
    made.release()


def test_names_of_files(tmp_path: Path) -> None:
    made = RunDirectory.create(tmp_path / "run", {})
    names = [made.log(3).name, made.error(3).name, made.summary(0).name]
    assert names == ["rank-3.log", "rank-3.error.json", "rank-0.summary.json"]
    assert made.store == f"file://{tmp_path}/run/store"
    made.release()


def test_an_old_run_is_cleared_out_of_a_chosen_directory(tmp_path: Path) -> None:
    for name in ("store", "rank-0.log", "rank-12.error.json", "notes.txt", "rank-x.log"):
        (tmp_path / name).write_text("old")
    RunDirectory.create(tmp_path, {}).release()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "notes.txt", "rank-x.log"]


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    first = RunDirectory.create(tmp_path, {})
    with pytest.raises(LaunchError, match=r"in use by another run; choose another with --run-dir"):
        RunDirectory.create(tmp_path, {})
    first.release()
    RunDirectory.create(tmp_path, {}).release()


def test_joined_directory_is_shared_and_stays_locked_over_exec(tmp_path: Path) -> None:
    first, second = (RunDirectory.join(tmp_path, "torchrun-abcdef", {}) for _ in range(2))
    assert first.path == second.path
    assert os.get_inheritable(first.lock)
    first.release()
    with pytest.raises(LaunchError, match="in use"):
        RunDirectory.create(tmp_path, {})
    second.release()


def test_only_the_newest_runs_are_kept_and_none_that_goes_on(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    runs = [RunDirectory.create(None, environment) for _ in range(6)]
    for age, run in enumerate(runs):
        os.utime(run.path, (1_000_000 + age, 1_000_000 + age))
    for run in runs[1:]:
        run.release()
    root = default_root(environment)
    (root / "mine").mkdir()
    prune(root, keep=2)
    assert {path.name for path in root.iterdir()} == {"mine", *(runs[i].run_id for i in (0, 4, 5))}
    runs[0].release()


def test_creating_runs_prunes(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    for _ in range(run_directory.KEPT_RUNS + 3):
        RunDirectory.create(None, environment).release()
    assert len(list(default_root(environment).iterdir())) == run_directory.KEPT_RUNS


def test_a_home_that_cannot_be_written_gives_way_to_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "file").touch()
    made = RunDirectory.create(None, {"HOME": str(tmp_path / "file")})
    assert made.path.is_relative_to(tmp_path / "scratch" / f"ronde-{os.getuid()}" / "runs")
    made.release()


def test_a_chosen_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        LaunchError, match=r"cannot write the run directory .*/file/run: Not a directory; choose"
    ):
        RunDirectory.create(tmp_path / "file" / "run", {})


@pytest.mark.parametrize("fault", ["full", "nearly full"])
def test_no_space_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    def usage(path: Any) -> Any:
        if fault == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        return type(real)(real.total, real.total - 1000, 1000)

    real = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(LaunchError, match=r"no space left for the run directory .*--run-dir DIR"):
        RunDirectory.create(tmp_path / "run", {})


def test_hosts_that_are_one_machine_have_directories_of_their_own(tmp_path: Path) -> None:
    for chosen in (None, tmp_path / "mine"):
        made = [
            RunDirectory.of_host(chosen, f"20261125-120000-abcdef000{host}", host, {"HOME": str(tmp_path)})
            for host in (0, 1)
        ]
        assert made[0].path != made[1].path
        assert all(each.path.is_dir() for each in made)
        for each in made:
            each.release()
    (tmp_path / "mine" / "host-1" / "rank-3.error.json").write_text("{}")
    again = RunDirectory.of_host(tmp_path / "mine", "20261125-120001-abcdef0001", 1, {})
    assert again.path == tmp_path / "mine" / "host-1"
    assert not again.error(3).exists()
    again.release()


def test_evidence_of_an_earlier_attempt_is_not_taken_for_that_of_the_next(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run", {})
    folder = directory.path / "evidence"
    folder.mkdir()
    for name in ("failure.json", "failure-rank-1.stack.txt", "notes-of-mine"):
        (folder / name).write_text("x")
    directory.begin_attempt(1)
    assert {path.name for path in folder.iterdir()} == {
        "attempt-1.failure.json",
        "attempt-1.failure-rank-1.stack.txt",
        "notes-of-mine",
    }
    directory.release()
    RunDirectory.create(tmp_path / "run", {}).release()
    assert [path.name for path in folder.iterdir()] == ["notes-of-mine"]
