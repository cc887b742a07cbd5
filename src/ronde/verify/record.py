"""Format of a recorded run on disk, its writer and its reader.

Every process writes two files into the record directory: `rank-N.events`, one JSON object a line, and
`rank-N.tensors`, the raw entries that the events point into. Both are opened once, before the script
starts, and written without a buffer, so a run that dies still leaves all that it had recorded.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Literal

import numpy

__all__ = [
    "BatchRecord",
    "Gradients",
    "RankRecord",
    "Read",
    "RecordConfig",
    "StepFingerprint",
    "Stored",
    "Turned",
    "Twin",
    "Writer",
    "read_record",
]

Twin = Literal["", "again", "halves", "up", "threads", "turned"]
"""Difference of a run from the plain one.

The same once more, batches computed in halves, parameters rounded up, another number of threads, numbers at a
tie or a kink turned.
"""

ENVIRONMENT_KEY = "RONDE_RECORD"

# Only evenly spaced entries of a larger tensor are kept: twenty steps of a large model would fill the disk.
ENTRY_LIMIT = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RecordConfig:
    """Configuration of a recorder, as JSON in an environment variable.

    Attributes:
        directory: the folder of the record.
        scratch: the run's copy of the user's directory, in which it runs.
        tree: the copy of the folders around it; writes under it count as the script's files.
        steps: the number of optimizer steps after which the run ends.
        double: whether to compute in double precision, whatever the script asks for.
        twin: the difference from the plain run, by rounding alone; empty for the plain run.
        narrow: whether models compute in half precision, by the plan.
        replay: the file of another run's clock times and seeds, to be replayed; empty without.
    """

    directory: str
    scratch: str
    tree: str
    steps: int
    double: bool = False
    twin: Twin = ""
    narrow: bool = False
    replay: str = ""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def take_from(cls, environment: MutableMapping[str, str]) -> RecordConfig:
        """Read the configuration and remove it, so that the script does not see it."""
        return cls(**json.loads(environment.pop(ENVIRONMENT_KEY)))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """Entries of one tensor in `rank-N.tensors`: every `stride`-th one of the flat tensor."""

    offset: int
    count: int
    dtype: str
    shape: tuple[int, ...]
    stride: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BatchRecord:
    """One batch of a loader: a fingerprint of each tensor in it.

    `step`: optimizer steps that had been taken before.
    """

    fingerprints: tuple[str, ...]
    step: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """One value that the script read on the host. An array's entries are stored apart.

    `step`: optimizer steps that had been taken before.
    """

    call: str
    where: str
    value: Any = None
    stored: Stored | None = None
    step: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Gradients:
    """Gradient norms before a step, None where a parameter has no gradient."""

    step: int
    norms: dict[str, float | None]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepFingerprint:
    """Parameters and generators' states after a step, counted from 1 over all optimizers."""

    step: int
    optimizer: str
    parameters: dict[str, Stored]
    random: dict[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Turned:
    """Numbers that one operation of a module had moved over a tie or kink.

    Attributes:
        step: the optimizer step that follows, counted from 1.
        of: the number of entries of the operation's input.
        apart: the least distance that one was moved, relative to the largest of them.
    """

    step: int
    place: str
    count: int
    of: int
    apart: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankRecord:
    """Events that one process recorded, in order within each kind.

    Attributes:
        ids: index batches of samplers (drawn ahead of the batches when a loader prefetches).
        circumstances: readings of the clock and seeds, by name, in order.
        starts: the script's lines that start a "process" or a "thread", by these words.
        opened: the number of times that each file under the scratch directory was opened for writing.
        in_parts: the numbers of outermost forwards that could, and could not, be computed in parts.
        turned: the numbers that a twin has moved at ties and kinks, by step and place.
        stopped: whether the asked number of steps was reached.
    """

    rank: int
    batches: tuple[BatchRecord, ...]
    ids: tuple[str, ...]
    reads: tuple[Read, ...]
    gradients: tuple[Gradients, ...]
    steps: tuple[StepFingerprint, ...]
    circumstances: tuple[tuple[str, Any], ...]
    starts: Mapping[str, tuple[str, ...]]
    opened: dict[str, int]
    in_parts: tuple[int, int]
    turned: tuple[Turned, ...]
    stopped: bool
    tensors: Path

    def before(self, step: int) -> RankRecord:
        """Return the record until this step (1-based) began."""
        batches = tuple(each for each in self.batches if each.step < step)
        return dataclasses.replace(
            self,
            batches=batches,
            ids=self.ids[: len(batches)],
            reads=tuple(each for each in self.reads if each.step < step),
            gradients=tuple(each for each in self.gradients if each.step < step),
            steps=self.steps[: step - 1],
            stopped=True,
        )

    def entries(self, stored: Stored) -> numpy.ndarray:
        """Return the kept entries of a stored tensor, flat."""
        if not stored.count:
            return numpy.empty(0, stored.dtype)
        return numpy.memmap(self.tensors, stored.dtype, "r", stored.offset, (stored.count,))


class Writer:
    """Writes one process's record, but not in a forked process (a loader's worker)."""

    def __init__(self, directory: str, rank: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
        self._process = os.getpid()
        self._events = os.open(os.path.join(directory, f"rank-{rank}.events"), flags, 0o644)
        self._tensors = os.open(os.path.join(directory, f"rank-{rank}.tensors"), flags, 0o644)
        self._offset = 0

    @property
    def active(self) -> bool:
        return os.getpid() == self._process

    def event(self, kind: str, **fields: Any) -> None:
        if self.active:
            _write_all(self._events, (json.dumps({"kind": kind, **fields}) + "\n").encode())

    def store(self, array: numpy.ndarray) -> dict[str, Any]:
        """Store an array's entries, and return the fields of their `Stored`."""
        flat = array.reshape(-1)
        stride = max(1, -(-flat.size // ENTRY_LIMIT))
        kept = numpy.ascontiguousarray(flat[::stride])
        fields = {
            "offset": self._offset,
            "count": int(kept.size),
            "dtype": kept.dtype.str,
            "shape": list(array.shape),
            "stride": stride,
        }
        if self.active:
            padding = -kept.nbytes % 16
            _write_all(self._tensors, kept.tobytes() + bytes(padding))
            self._offset += kept.nbytes + padding
        return fields


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _stored(fields: Mapping[str, Any]) -> Stored:
    return Stored(**{**fields, "shape": tuple(fields["shape"])})


def read_record(directory: Path, rank: int) -> RankRecord:
    """Read the record of one process; a missing one reads as empty."""
    batches: list[BatchRecord] = []
    ids: list[str] = []
    reads: list[Read] = []
    gradients: list[Gradients] = []
    steps: list[StepFingerprint] = []
    circumstances: list[tuple[str, Any]] = []
    starts: dict[str, dict[str, None]] = {}
    opened: dict[str, int] = {}
    in_parts = [0, 0]
    turned: list[Turned] = []
    stopped = False
    path = directory / f"rank-{rank}.events"
    for line in path.read_text().splitlines() if path.exists() else ():
        fields = json.loads(line)
        kind = fields.pop("kind")
        if kind == "batch":
            batches.append(BatchRecord(fingerprints=tuple(fields["fingerprints"]), step=len(steps)))
        elif kind == "ids":
            ids.append(fields["ids"])
        elif kind == "read":
            stored = fields.pop("stored", None)
            reads.append(Read(**fields, stored=_stored(stored) if stored else None, step=len(steps)))
        elif kind == "gradients":
            gradients.append(Gradients(**fields))
        elif kind == "step":
            parameters = {name: _stored(each) for name, each in fields.pop("parameters").items()}
            steps.append(StepFingerprint(**fields, parameters=parameters))
        elif kind == "circumstance":
            circumstances.append((fields["name"], fields["value"]))
        elif kind == "start":
            starts.setdefault(fields["what"], {})[fields["where"]] = None
        elif kind == "opened":
            opened[fields["path"]] = opened.get(fields["path"], 0) + 1
        elif kind == "in_parts":
            in_parts[0 if fields["done"] else 1] += 1
        elif kind == "turned":
            turned.append(Turned(**fields, step=len(steps) + 1))
        elif kind == "stopped":
            stopped = True
    return RankRecord(
        rank=rank,
        batches=tuple(batches),
        ids=tuple(ids),
        reads=tuple(reads),
        gradients=tuple(gradients),
        steps=tuple(steps),
        circumstances=tuple(circumstances),
        starts={what: tuple(places) for what, places in starts.items()},
        opened=opened,
        in_parts=(in_parts[0], in_parts[1]),
        turned=tuple(turned),
        stopped=stopped,
        tensors=directory / f"rank-{rank}.tensors",
    )
