"""What a launcher and its agents say to each other."""

from __future__ import annotations

import os

import pytest

from ronde.launch.frames import MAGIC, FrameError, FrameKind, Sender, frames, skip_to_magic, unpack


def piped(data: bytes) -> int:
    ours, theirs = os.pipe()
    os.write(theirs, data)
    os.close(theirs)
    return ours


def test_frames_come_as_they_were_sent() -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"Welcome to this host\n\0ronde" + MAGIC)
    sender = Sender(theirs)
    sender.send(FrameKind.HELLO, {"name": "h\u00f6st"})
    sender.send(FrameKind.OUT, b"\0\xff bytes")
    sender.send(FrameKind.END)
    os.close(theirs)
    assert skip_to_magic(ours)
    found = list(frames(ours))
    os.close(ours)
    assert unpack(found[0][1]) == {"name": "h\u00f6st"}
    assert found[1:] == [(FrameKind.OUT, b"\0\xff bytes"), (FrameKind.END, b"")]


def test_what_is_no_frame() -> None:
    for data in (b"?\0\0\0\0", b"1\xff\xff\xff\xff"):
        source = piped(data)
        with pytest.raises(FrameError):
            list(frames(source))
        os.close(source)
    cut = piped(b"1\0\0\0\x09half")
    assert list(frames(cut)) == []
    os.close(cut)
    silent = piped(b"Welcome\n")
    assert not skip_to_magic(silent)
    os.close(silent)
