"""Timeline of some steps of a rank, appended to a file of bounded size."""

from __future__ import annotations

import dataclasses
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MOST_SPANS", "SPANS_FILE", "Span", "SpanFile", "read_spans", "spans_path"]

MOST_SPANS = 500_000
"""Of each rank: 24 MB."""

SPANS_FILE = re.compile(r"rank-(\d+)\.spans")
_SPAN = struct.Struct("<qqqq16s")


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """An interval of a rank's time, in nanoseconds of its monotonic clock.

    Attributes:
        name: a phase ("forward"), "step", "wait" for others, or a collective ("all_reduce").
        number: number of its optimizer step, from 1.
        nbytes: bytes that this rank gives to the collective; -1 for other spans.
    """

    name: str
    begin: int
    end: int
    number: int
    nbytes: int = -1


def spans_path(directory: Path, rank: int) -> Path:
    """The file of that rank."""
    return directory / f"rank-{rank}.spans"


class SpanFile:
    """A rank's span file, flushed at each step.

    A rank that is killed loses the spans of one step.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        # os.open is not mediated: every rank writes its own.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._pending = bytearray()
        self._count = 0

    def add(self, name: str, begin: int, end: int, number: int, nbytes: int = -1) -> None:
        """Add a span that has ended; beyond `MOST_SPANS` nothing is kept."""
        if self._count < MOST_SPANS:
            self._count += 1
            self._pending += _SPAN.pack(begin, end, number, nbytes, name.encode()[:16])

    def flush(self) -> None:
        """Write pending spans; a full disk costs the rest of the timeline."""
        pending, self._pending = self._pending, bytearray()
        try:
            while pending:
                pending = pending[os.write(self._file, pending) :]
        except OSError:
            self._count = MOST_SPANS

    def close(self) -> None:
        self.flush()
        os.close(self._file)


def read_spans(path: Path) -> Iterator[Span]:
    """Read the spans of a file; nothing if it does not exist."""
    try:
        data = path.read_bytes()
    except OSError:
        return
    for begin, end, number, nbytes, name in _SPAN.iter_unpack(data[: len(data) // _SPAN.size * _SPAN.size]):
        yield Span(name.rstrip(b"\0").decode("utf-8", "replace"), begin, end, number, nbytes)
