"""Filter of output lines that are printed again after a restart.

A resumed rank tells at which line of its output it continues. From there on lines are compared, without times
and rates, with the lines that were shown; from the first difference on everything is shown again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

__all__ = ["RepeatedLines", "count_lines", "write_position"]

_SIZE = 8
_OWN = b"ronde: "
_POSITION = "rank-0.position"
_PIECES = re.compile(rb"[^\n]*\n|[^\n]+")
_NUMBER = rb"(?<![\w.])\d+(?:,\d{3})*(?:\.\d*)?(?:e[+-]?\d+)?"
_UNIT = rb"(?:[num]s|\xc2\xb5s|s|secs?|seconds?|minutes?|hours?)"
_TIMES = (
    rb"\b\d{4}-\d\d-\d\d(?:T(?=\d))?",
    rb"(?<![\d:.])(?:\d\d?:\d\d:\d\d|\d\d:\d\d)(?:[.,]\d+)?(?![\d:])",
    rb"\b\d+[hm](?= ?\d+(?:\.\d+)?[ms]\b)",  # 1h 2m 3.5s
    rb"(?:" + _NUMBER + rb"|(?<=\d[hm])\d+(?:\.\d+)?) ?" + _UNIT + rb"(?:/[a-z]+)?\b",  # 0.3 s, 12ms/step
    _NUMBER + rb" ?[kKMG]? ?[A-Za-z]*(?:/| per )" + _UNIT + rb"\b",  # 40 it/s, 5 MB/s
    rb"(?:(?<=time)|(?<=elapsed)|(?<=took)|(?<=per_second))['\"]?[ :=]{1,3}" + _NUMBER,
)
_TIME = re.compile(b"|".join(_TIMES))


class RepeatedLines:
    """Filter of a channel's bytes: drops lines of an earlier attempt.

    Args:
        directory: the run directory, which all attempts share.
        stream: `stdout` or `stderr`.
        resumed: whether the rank is resumed, and will tell from which line on.
    """

    def __init__(self, directory: Path, stream: str, *, resumed: bool) -> None:
        self._directory, self._stream = directory, stream
        # The position of an earlier attempt is not valid for this one.
        (directory / _POSITION).unlink(missing_ok=True)
        # Digests of the lines that were shown, concatenated.
        self._file = os.open(directory / f"printed-{stream}", os.O_RDWR | os.O_CREAT, 0o666)
        self._known = os.fstat(self._file).st_size // _SIZE if resumed else 0
        self._at = None if resumed else 0
        self._line = b""
        # Left by an earlier attempt that ended inside a line.
        self._unfinished = directory / f"printed-{stream}_unfinished"
        self._breaks = resumed and self._unfinished.exists()
        self._unfinished.unlink(missing_ok=True)

    def add(self, data: bytes) -> bytes:
        """Filter bytes; a line under comparison is held until its end."""
        shown = self._filtered(data)
        if shown and self._breaks:
            self._breaks = False
            return b"\n" + shown
        return shown

    def _filtered(self, data: bytes) -> bytes:
        if self._at is None:
            self._at = _read_position(self._directory, self._stream)
        if self._at is None:  # printed before the script
            return data
        shown = bytearray()
        for piece in _PIECES.findall(data):
            holding = self._at < self._known
            self._line += piece
            if not holding:
                shown += piece
            if self._line.endswith(b"\n"):
                line, self._line = self._line, b""
                if self._is_new(line) and holding:
                    shown += line
        return bytes(shown)

    def end(self) -> bytes:
        """Return the rest of an unfinished last line."""
        held = self._line if self._at is not None and self._at < self._known else b""
        if self._line or self._breaks:
            self._unfinished.touch()
        os.close(self._file)
        return held

    def _is_new(self, line: bytes) -> bool:
        if line.startswith(_OWN):
            return True
        assert self._at is not None
        digest = hashlib.blake2b(_without_times(line), digest_size=_SIZE).digest()
        repeated = self._at < self._known and os.pread(self._file, _SIZE, self._at * _SIZE) == digest
        if not repeated:
            self._known = 0
            os.ftruncate(self._file, self._at * _SIZE)
            os.pwrite(self._file, digest, self._at * _SIZE)
        self._at += 1
        return not repeated


def _without_times(line: bytes) -> bytes:
    """Mask times and rates in the last state of a line with carriage returns."""
    return _TIME.sub(b"0", line.rstrip(b"\r\n").rpartition(b"\r")[2])


def count_lines(file: int) -> int:
    """Count complete lines of an open file, without ronde's own lines."""
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(os.dup(file), "rb") as lines:
        return sum(line.endswith(b"\n") and not line.startswith(_OWN) for line in lines)


def write_position(directory: Path, lines: dict[str, int]) -> None:
    """Write, for each stream, the number of lines before a rank's next one."""
    path = directory / _POSITION
    beside = path.with_suffix(".position.new")
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        os.write(file, json.dumps(lines).encode())
    finally:
        os.close(file)
    os.rename(beside, path)


def _read_position(directory: Path, stream: str) -> int | None:
    try:
        return int(json.loads((directory / _POSITION).read_bytes())[stream])
    except (OSError, ValueError, KeyError):
        return None
