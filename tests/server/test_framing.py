"""Frames are read as they were written, and damage is found."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ronde.server.framing import DamagedFrame, frame, frames_of, has_frame, write

ARRAYS = [
    np.arange(5, dtype=np.float32),
    np.zeros((0, 3), np.int64),
    np.arange(6, dtype=np.int64).reshape(2, 3)[:, ::2],
    np.array(7, np.uint8),
]


def written(path: Path, *contents: tuple[object, list[np.ndarray]]) -> Path:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for meta, arrays in contents:
        write(descriptor, frame(meta, arrays))
    os.close(descriptor)
    return path


def test_what_is_read_was_written(tmp_path: Path) -> None:
    many = [np.full(3, number, np.int32) for number in range(3000)]  # more than one call writes
    path = written(tmp_path / "file", ({"a": [1, None, 0.1]}, ARRAYS), ("second", []), (3, many))
    first, second, third = frames_of(path)
    assert first.meta == {"a": [1, None, 0.1]}
    for mine, theirs in zip(ARRAYS, first.arrays, strict=True):
        assert mine.dtype == theirs.dtype
        assert np.array_equal(mine, theirs)
        assert theirs.flags.aligned
        assert theirs.flags.writeable
    assert (second.meta, second.arrays) == ("second", [])
    assert third.end == path.stat().st_size
    assert all(np.array_equal(a, b) for a, b in zip(many, third.arrays, strict=True))


@pytest.mark.parametrize("kept", [1, 23, 24, 60, -1])
def test_a_torn_frame_is_found_where_it_begins(tmp_path: Path, kept: int) -> None:
    path = written(tmp_path / "file", (1, ARRAYS))
    whole = path.stat().st_size
    written(path, (1, ARRAYS), (2, ARRAYS))
    os.truncate(path, whole + kept if kept > 0 else path.stat().st_size + kept)
    read = frames_of(path)
    next(read)
    with pytest.raises(DamagedFrame) as caught:
        next(read)
    assert caught.value.offset == whole
    assert not has_frame(path, whole)


@given(where=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(max_examples=50, deadline=None)
def test_no_bit_may_turn(tmp_path_factory: pytest.TempPathFactory, where: int, bit: int) -> None:
    path = written(tmp_path_factory.mktemp("frames") / "file", ({"told": "x"}, ARRAYS), (2, []))
    content = bytearray(path.read_bytes())
    content[where % len(content)] ^= 1 << bit
    path.write_bytes(content)
    with pytest.raises(DamagedFrame):
        list(frames_of(path))


def test_a_whole_frame_behind_damage_is_found(tmp_path: Path) -> None:
    path = written(tmp_path / "file", (1, ARRAYS), (2, ARRAYS))
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)
    assert has_frame(path, 0)


def test_a_file_without_frames(tmp_path: Path) -> None:
    assert list(frames_of(written(tmp_path / "file"))) == []
