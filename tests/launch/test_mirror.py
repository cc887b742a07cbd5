"""A node's files, as they come to the launcher's run directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ronde.launch import mirror
from ronde.launch.mirror import DirectoryChanges, FileChunk, changed_ranges, is_mirrored
from ronde.trace.events import append_events, read_events, write_event


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("node", "launcher"):
        (tmp_path / name).mkdir()
    return tmp_path / "node", tmp_path / "launcher"


def bring(pieces: DirectoryChanges, target: Path, *, last: bool = False) -> int:
    """Bring what has changed; how many bytes that is."""
    size = 0
    for piece in pieces.changes(last=last):
        again = FileChunk.from_bytes(piece.to_bytes())
        assert again == piece
        again.write_into(target)
        size += len(again.data)
    return size


def test_a_mapped_file_comes_by_the_blocks_that_have_changed(folders: tuple[Path, Path]) -> None:
    here, there = folders
    content = bytearray(100_000)
    (here / "rank-3.steps").write_bytes(content)
    pieces = DirectoryChanges(here)
    assert bring(pieces, there) == 100_000
    assert bring(pieces, there) == 0
    content[70_000:70_010] = b"x" * 10
    (here / "rank-3.steps").write_bytes(content)
    assert 0 < bring(pieces, there) <= 1024
    assert (there / "rank-3.steps").read_bytes() == content


def test_a_log_comes_by_whole_lines_and_its_end_at_last(folders: tuple[Path, Path]) -> None:
    here, there = folders
    (here / "rank-0.log").write_bytes(b"one\ntw")
    pieces = DirectoryChanges(here)
    bring(pieces, there)
    assert (there / "rank-0.log").read_bytes() == b"one\n"
    (here / "rank-0.log").write_bytes(b"one\ntwo\nthr")
    bring(pieces, there, last=True)
    assert (there / "rank-0.log").read_bytes() == b"one\ntwo\nthr"


def test_of_a_very_long_log_the_last_part_comes(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = folders
    monkeypatch.setattr(mirror, "_LAST_LOG", 10)
    (here / "rank-0.log").write_bytes(b"a" * 30 + b"the end...")
    bring(DirectoryChanges(here), there, last=True)
    found = (there / "rank-0.log").read_bytes()
    assert found.endswith(b"\nthe end...")
    assert b"30 bytes of this log are on its own host only" in found


def test_spans_come_as_they_grow(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = folders
    monkeypatch.setattr(mirror, "_LARGEST", 50)
    pieces = DirectoryChanges(here)
    for size in (0, 130, 130, 300):
        (here / "rank-2.spans").write_bytes(bytes(range(200)) * 2)
        os.truncate(here / "rank-2.spans", size)
        bring(pieces, there)
    assert (there / "rank-2.spans").read_bytes() == (here / "rank-2.spans").read_bytes()


def test_events_come_with_the_launchers_time(folders: tuple[Path, Path]) -> None:
    here, there = folders
    write_event(there, "notice", "of the launcher")
    write_event(here, "start", "train.py", rank=0, plan="ddp")
    (piece,) = DirectoryChanges(here).changes()
    append_events(there, piece.data, later=-3600.0)
    started, noticed = read_events(there)
    assert (started.kind, started.rank, started.more["plan"]) == ("start", 0, "ddp")
    assert noticed.kind == "notice"


def test_nothing_else_is_taken(folders: tuple[Path, Path]) -> None:
    here, _ = folders
    for name in ("boundary.board", "lock", "rank-0.error.json", "store", "pulse"):
        (here / name).write_text("x")
    assert list(DirectoryChanges(here).changes(last=True)) == []
    assert not is_mirrored("../rank-0.log")
    assert not is_mirrored("rank-0.error.json")
    assert is_mirrored("server-1.log")


def test_ranges_that_differ() -> None:
    assert list(changed_ranges([1, 2, 3, 4], [1, 9, 9, 4, 5])) == [(1, 3), (4, 5)]
    assert list(changed_ranges([], [1, 2])) == [(0, 2)]
    assert list(changed_ranges([1, 2], [1, 2])) == []
    assert json.loads(FileChunk("a", None, b"").to_bytes().partition(b"\n")[0]) == ["a", None]
