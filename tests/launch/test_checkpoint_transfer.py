"""Checkpoints that travel between a launcher's folder and a host that does not see it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ronde.errors import UsageError
from ronde.launch.checkpoint_transfer import (
    CheckpointReceiver,
    CheckpointSender,
    mark_folder,
    sees_mark,
    take_brought,
)
from ronde.launch.mirror import FileChunk
from ronde.trace.checkpoint_manifest import MANIFEST, CheckpointManifest


def write(folder: Path, step: int, journal: bytes, state: bytes) -> None:
    place = folder / f"step-{step:08d}"
    place.mkdir(parents=True)
    (folder / "journal").write_bytes(journal)
    (place / "state.pt").write_bytes(state)
    manifest = CheckpointManifest(
        step=step,
        entries=1,
        journal_bytes=len(journal),
        boundary="call",
        seed=1,
        plan="ddp",
        ranks=2,
        script="a.py",
    )
    (place / MANIFEST).write_text(json.dumps(dataclasses.asdict(manifest)))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_each_comes_once_and_as_many_are_kept_as_on_one_host(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    source, target = CheckpointSender(here), CheckpointReceiver(there, keep=2)
    state = bytes(range(256)) * 10_000  # of several pieces
    for step in (1, 2, 3):
        write(here, step, b"j" * step, state[step:])
        pieces = list(source.pieces())
        assert pieces[-1].name == f"step-{step:08d}/{MANIFEST}"
        for piece in pieces:
            target.take(FileChunk.from_bytes(piece.to_bytes()))
        assert not list(source.pieces())
    wanted = {name: content for name, content in files(here).items() if "00001" not in name}
    assert files(there) == wanted


def test_one_that_has_not_come_to_its_end_is_none(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    write(here, 5, b"journal", b"state")
    *most, last = CheckpointSender(here).pieces()
    target = CheckpointReceiver(there, keep=2)
    for piece in most:
        target.take(piece)
    assert not list(there.glob("step-*"))
    for piece in CheckpointSender(here).pieces():  # sent again from its beginning
        target.take(piece)
    assert last.name in files(there)
    assert files(there) == files(here)


def test_what_came_from_the_launcher_does_not_go_back(tmp_path: Path) -> None:
    here, run_directory = tmp_path / "here", tmp_path / "run"
    write(run_directory / "checkpoints", 9, b"stale", b"of an earlier run")
    write(here, 5, b"journal", b"state")
    assert take_brought(run_directory, CheckpointSender(here).pieces()) == ""
    assert files(run_directory / "checkpoints") == files(here)
    back = CheckpointSender(run_directory / "checkpoints")
    back.pass_over()
    assert not list(back.pieces())


@pytest.mark.parametrize("name", ["../journal", "step-00000001/x", "/etc/passwd", "step-00000001"])
def test_only_files_of_checkpoints_are_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is not a file of a checkpoint"):
        CheckpointReceiver(tmp_path, keep=2).take(FileChunk(name, 0, b"x"))


def test_a_host_knows_the_launchers_folder_by_a_mark(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    with mark_folder(str(folder)) as mark:
        assert sees_mark(mark)
        assert not sees_mark(f"{tmp_path}/another/{Path(mark).name}")
    assert not list(folder.iterdir())
    with mark_folder("") as mark:
        assert sees_mark(mark)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"), mark_folder(str(tmp_path / "file" / "x")):
        pass
