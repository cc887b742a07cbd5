"""Journal of values that a script has read, in order, for replay without computing.

The control flow of a script depends on values that it reads on the host (`loss.item()`, a branch on an
accuracy), on results of models (structure and shapes), on the clock; everything else repeats itself with the
same seed. The journal records these values. To resume, the script runs again from its beginning: models,
backward and optimizer steps are skipped, and every value is read from the journal. Where the journal ends,
the tensors get the checkpoint's values, and the script continues normally.

The file is a sequence of blocks, each with its length and checksum, and only grows: a checkpoint names how
many bytes and entries belong to it. Ranks that train by themselves read different values: then a block has
the number of its rank, and a flag if it is the first of the rank's journal.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from ronde.errors import RondeError

__all__ = ["Journal", "JournalEntry", "JournalError", "Mismatch", "begins_journal", "read_entries"]

_HEAD = struct.Struct("<QI")
_LEVEL = 1
_COMPRESSED = zlib.compress(b"", _LEVEL)[:2]  # first bytes of each block after its head


class JournalError(RondeError):
    """Raised for a damaged journal file."""


class Mismatch(RondeError):
    """Raised when a replayed script does something else than its journal says."""


@dataclasses.dataclass(slots=True)
class JournalEntry:
    """One recorded operation of a script, with its result.

    Attributes:
        kind: `call`, `backward`, `grad`, `step`, `read`, `shape`, `agreed`.
        name: name of the called or asked function.
        payload: the answer; its type depends on the kind.
        random: states of generators at its end, if the script drew from them afterwards; else None.
    """

    kind: str
    name: str
    payload: Any = None
    random: Any = None


class Journal:
    """Entries of this run, replayed from an earlier run and then recorded.

    Args:
        entries: entries of the run that is resumed.
        rank: rank of the journal.
        others: whether the entries are those of another rank.

    Attributes:
        replaying: whether answers come from an earlier run's entries.
    """

    def __init__(
        self, entries: list[JournalEntry] | None = None, *, rank: int = 0, others: bool = False
    ) -> None:
        self._entries = entries or []
        self._rank = rank
        self._place = 0
        self._flushed = 0 if others else len(self._entries)
        self.replaying = entries is not None

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def at_end(self) -> bool:
        """Return whether all entries of the earlier run have been used."""
        return self._place == len(self._entries)

    def record(self, kind: str, name: str, payload: Any = None) -> JournalEntry:
        """Append an entry; its payload may still be filled in."""
        entry = JournalEntry(kind, name, payload)
        self._entries.append(entry)
        return entry

    def take(self, kind: str, name: str) -> JournalEntry:
        """Return the next entry of the earlier run.

        Raises:
            Mismatch: the script does something else than the next entry says.
        """
        if self.at_end:
            raise Mismatch(f"it reaches {_said(kind, name)} after the end of its journal [R514]")
        entry = self._entries[self._place]
        if (entry.kind, entry.name) != (kind, name):
            raise Mismatch(
                f"at entry {self._place + 1} of {len(self._entries)} it reaches {_said(kind, name)}, and "
                f"reached {_said(entry.kind, entry.name)} before [R514]"
            )
        self._place += 1
        return entry

    def forget_since(self, count: int) -> None:
        """Remove the entries after the first `count`: they are repeated, or never happened."""
        if not self.replaying:
            del self._entries[count:]

    def begin_recording(self) -> None:
        """End the replay: later entries are new."""
        self.replaying = False

    def fresh(self) -> bytes:
        """Encode entries since the last call as a block of the file.

        b"" without new entries.
        """
        fresh, anew = self._entries[self._flushed :], self._flushed == 0
        self._flushed = len(self._entries)
        if not fresh:
            return b""
        content = zlib.compress(_packed(fresh, (self._rank, anew) if self._rank else None), _LEVEL)
        return _HEAD.pack(len(content), zlib.crc32(content)) + content


def begins_journal(content: bytes) -> bool:
    """Return whether a file that begins so is a journal, perhaps torn or empty."""
    return not content or content[_HEAD.size : _HEAD.size + len(_COMPRESSED)] == _COMPRESSED


def read_entries(content: bytes, rank: int = 0) -> list[JournalEntry]:
    """Return the entries of a rank in a journal file's content.

    Raises:
        JournalError: the file is damaged, or ends inside a block.
    """
    found: list[JournalEntry] = []
    for block in _blocks(content):
        stream = io.BytesIO(block)
        first = pickle.load(stream)
        owner, anew = first if isinstance(first, tuple) else (0, False)
        if owner == rank:
            found = [] if anew else found
            values = pickle.load(stream) if isinstance(first, tuple) else first
            found += [JournalEntry(*each) for each in values]
    return found


def _blocks(content: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(content):
        if place + _HEAD.size > len(content):
            raise JournalError(f"it ends inside a block at byte {place} [R511]")
        length, checksum = _HEAD.unpack_from(content, place)
        begin, place = place + _HEAD.size, place + _HEAD.size + length
        block = content[begin:place]
        if len(block) < length or zlib.crc32(block) != checksum:
            raise JournalError(f"its block at byte {begin} is damaged [R511]")
        yield zlib.decompress(block)


def _packed(entries: list[JournalEntry], owner: tuple[int, bool] | None) -> bytes:
    stream = io.BytesIO()
    if owner is not None:
        pickle.dump(owner, stream, protocol=5)
    # One pickler: payloads that are the same object, as forms of outputs are, are written once.
    pickle.Pickler(stream, protocol=5).dump([(e.kind, e.name, e.payload, e.random) for e in entries])
    return stream.getvalue()


def _said(kind: str, name: str) -> str:
    return {
        "call": f"a call of {name}",
        "backward": "a backward",
        "grad": "torch.autograd.grad",
        "step": f"a step of {name}",
        "read": f"a reading by {name}",
        "shape": f"an operation {name}",
        "agreed": f"a question for {name}",
    }[kind]
