"""Mirror of a node's files in the launcher's run directory, in pieces.

So the launcher has the files that `ronde top`, `report` and `doctor` read, for all ranks, even after a node
is lost. Mapped files of numbers change without notice, so they are compared block by block with the sent
content; of logs and events new lines are sent, and of a very long log only the last part.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ronde.launch.write_all import write_all
from ronde.trace.spans import SPANS_FILE

__all__ = ["DirectoryChanges", "FileChunk", "is_mirrored"]

_BLOCK = 512
# : Bytes of a log that are sent at a time during the run, and at its end.
_LIVE_LOG, _LAST_LOG = 16 << 10, 4 << 20
_LARGEST = 1 << 20
_NUMBERS = re.compile(r"rank-\d+\.(steps|vitals|summary\.json|crash)")
_TEXTS = re.compile(r"rank-\d+\.log|server-\d+\.log|events\.jsonl")


@dataclasses.dataclass(frozen=True, slots=True)
class FileChunk:
    """Some bytes of a file.

    Attributes:
        name: name of the file in the run directory.
        at: offset of the bytes; None: they are appended.
    """

    name: str
    at: int | None
    data: bytes

    def to_bytes(self) -> bytes:
        return json.dumps([self.name, self.at]).encode() + b"\n" + self.data

    @classmethod
    def from_bytes(cls, content: bytes) -> FileChunk:
        head, _, data = content.partition(b"\n")
        name, at = json.loads(head)
        return cls(name, at, data)

    def write_into(self, directory: Path) -> None:
        """Write the bytes to the file in `directory`, at their offset.

        Raises:
            OSError: the bytes cannot be written.
        """
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if self.at is None else 0)
        file = os.open(directory / self.name, flags, 0o666)
        try:
            if self.at is not None:
                os.lseek(file, self.at, os.SEEK_SET)
            write_all(file, self.data)
        finally:
            os.close(file)


def is_mirrored(name: str) -> bool:
    """Return whether a node may send a file of this name."""
    return any(each.fullmatch(name) for each in (_NUMBERS, _TEXTS, SPANS_FILE))


class DirectoryChanges:
    """The changes in a node's run directory since the last look."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._blocks: dict[str, list[int]] = {}
        self._sent: dict[str, int] = {}

    def changes(self, *, last: bool = False) -> Iterator[FileChunk]:
        """Yield the pieces to be sent.

        Args:
            last: whether the ranks have ended, so that everything left is sent.
        """
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(self._directory)):
                with contextlib.suppress(OSError):
                    if _NUMBERS.fullmatch(name):
                        yield from self._changed_blocks(name)
                    elif SPANS_FILE.fullmatch(name):
                        yield from self._grown(name)
                    elif _TEXTS.fullmatch(name):
                        yield from self._appended(name, _LAST_LOG if last else _LIVE_LOG, last=last)

    def _changed_blocks(self, name: str) -> Iterator[FileChunk]:
        content = (self._directory / name).read_bytes()
        blocks = [hash(content[at : at + _BLOCK]) for at in range(0, len(content), _BLOCK)]
        before = self._blocks.get(name, [])
        for first, end in changed_ranges(before, blocks):
            for at in range(first * _BLOCK, min(end * _BLOCK, len(content)), _LARGEST):
                yield FileChunk(name, at, content[at : min(at + _LARGEST, end * _BLOCK)])
        self._blocks[name] = blocks

    def _grown(self, name: str) -> Iterator[FileChunk]:
        """Yield the new bytes of a file that only grows."""
        with (self._directory / name).open("rb") as stream:
            stream.seek(self._sent.get(name, 0))
            while data := stream.read(_LARGEST):
                yield FileChunk(name, None, data)
                self._sent[name] = stream.tell()

    def _appended(self, name: str, most: int, *, last: bool) -> Iterator[FileChunk]:
        path = self._directory / name
        sent, size = self._sent.get(name, 0), path.stat().st_size
        if last and size - sent > most:
            skipped = size - most - sent
            words = f"\n[ronde: {skipped} bytes of this log are on its own host only, in {path}]\n"
            yield FileChunk(name, None, words.encode())
            sent += skipped
        with path.open("rb") as stream:
            stream.seek(sent)
            data = stream.read(most)
        # Whole lines, unless a line is longer than a piece.
        end = data.rfind(b"\n") + 1
        whole = data if last or (not end and len(data) == most) else data[:end]
        for at in range(0, len(whole), _LARGEST):
            yield FileChunk(name, None, whole[at : at + _LARGEST])
        self._sent[name] = sent + len(whole)


def changed_ranges(before: Sequence[int], now: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Return the ranges in which `new` differs from `old`, ends excluded."""
    begun: int | None = None
    for place, value in enumerate(now):
        same = place < len(before) and before[place] == value
        if same and begun is not None:
            yield begun, place
            begun = None
        elif not same and begun is None:
            begun = place
    if begun is not None:
        yield begun, len(now)
