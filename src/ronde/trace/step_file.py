"""Optimizer steps of a rank, in a mapped file of fixed size.

The file outlives the rank.

    header   rank, host, clocks; and the present phase of the rank
    recent   the last RECENT steps, one record each, in a ring
    course   the whole run in at most COURSE records: when these are full, each two become one, and from then
             on a record stands for twice as many steps

So a run of a week has the same file as one of a minute: 0.8 MB per rank. Writing is two copies into memory,
without a system call; readers need no help of the rank. A record is valid if it continues the one before it,
so a half-written record, or an interrupted merge, does no harm.

All times are nanoseconds by the monotonic clock of the rank's host. The header has the offset that turns them
into those of the host of rank 0, for ranks on several hosts; on one host it is 0.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ronde.trace.shared_file import shared_file

__all__ = [
    "RECENT",
    "RECORD_BYTES",
    "ROUTES",
    "StepFile",
    "StepRecord",
    "StepsOfRank",
    "read_course",
    "read_head",
    "read_header",
    "read_parts",
    "read_recent",
    "read_steps",
    "steps_path",
]

RECENT, COURSE = 512, 4096
ROUTES = ("shared memory", "tcp", "nccl", "server")
"""By which bytes leave a rank."""

_MAGIC = 0x31_73_70_65_74_73_64_72  # "rdsteps1", as bytes
_HEADER_SIZE = 4096
# magic, rank, world size, process, wall and monotonic clock at the beginning, offset, records in the course
_HEADER = struct.Struct("<8q64s")
_COURSE_AT = 7 * 8
# Live numbers of the rank: phase, since when, steps, samples, ended.
_LIVE = 256
_LIVE_NUMBERS = 5
_RECORD = struct.Struct("<19qdq")
RECORD_BYTES = _RECORD.size
_SIZE = _HEADER_SIZE + (RECENT + COURSE) * _RECORD.size
# Places in a record.
_STEP, _STEPS, _BEGUN, _ENDED = range(4)
_RESIDENT, _DEVICE = 10, 11
_LOSS, _LOSSES = 19, 20


@dataclasses.dataclass(frozen=True, slots=True)
class StepRecord:
    """One optimizer step, or several consecutive ones; fields in file order.

    Attributes:
        step: number of the last one, from 1. The time after a rank's last step has `steps` 0.
        steps: number of steps.
        begun, ended: nanoseconds by the monotonic clock.
        data, forward, backward, optimizer: nanoseconds in each phase, without waiting.
        waited: nanoseconds of waiting for other ranks or for servers.
        samples: rows of training batches.
        resident: bytes of the process in memory, at most.
        device: bytes that torch holds on the CUDA device, at most; 0 on a CPU.
        sent: bytes handed over to collectives and servers, by `ROUTES`.
        collectives: number of collectives.
        last: number of collectives at which this rank was the last of its host, while the others waited.
        late: sum of the nanoseconds by which this rank then came after the last but one.
        loss: mean of the losses that the script read; NaN without any.
        losses: number of losses that the script read.
    """

    step: int
    steps: int
    begun: int
    ended: int
    data: int
    forward: int
    backward: int
    optimizer: int
    waited: int
    samples: int
    resident: int
    device: int
    sent: tuple[int, ...]
    collectives: int
    last: int
    late: int
    loss: float = math.nan
    losses: int = 0

    @property
    def seconds(self) -> float:
        return (self.ended - self.begun) / 1e9

    @property
    def other(self) -> int:
        """Nanoseconds of the script itself."""
        known = self.data + self.forward + self.backward + self.optimizer + self.waited
        return max(0, self.ended - self.begun - known)

    def values(self) -> list[float]:
        """Return the numbers in the order of the file."""
        flat: list[float] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            flat += value if isinstance(value, tuple) else (value,)
        return flat

    @classmethod
    def of(cls, values: Sequence[float]) -> StepRecord:
        """Make a record of the numbers in the file."""
        whole: list[Any] = [int(value) for value in values[:_LOSS]]
        fields: list[Any] = [*whole[:12], tuple(whole[12:16]), *whole[16:]]
        return cls(*fields, loss=float(values[_LOSS]), losses=int(values[_LOSSES]))


def merged(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Merge two consecutive records; values as in the file."""
    total = [one + other for one, other in zip(first, second, strict=True)]
    total[_STEP], total[_BEGUN], total[_ENDED] = second[_STEP], first[_BEGUN], second[_ENDED]
    for place in (_RESIDENT, _DEVICE):
        total[place] = max(first[place], second[place])
    read = [(each[_LOSS], each[_LOSSES]) for each in (first, second) if each[_LOSSES]]
    count = sum(losses for _, losses in read)
    total[_LOSS] = sum(loss * losses for loss, losses in read) / count if count else math.nan
    return total


def steps_path(directory: Path, rank: int) -> Path:
    """The file of that rank."""
    return directory / f"rank-{rank}.steps"


class StepFile:
    """A rank's step file, for writing.

    Args:
        clocks: the wall clock and the monotonic clock at one moment, in nanoseconds.
        host: name of the rank's host.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(
        self, path: Path, *, rank: int, world_size: int, process: int, clocks: tuple[int, int], host: str
    ) -> None:
        # Records of an earlier run are removed; os.open is never mediated.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666))
        self._memory: mmap.mmap = shared_file(path, _SIZE, make=True)
        self._live = memoryview(self._memory)[_LIVE : _LIVE + 8 * _LIVE_NUMBERS].cast("q")
        name = host.encode("utf-8", "replace")[:64]
        _HEADER.pack_into(self._memory, 0, _MAGIC, rank, world_size, process, *clocks, 0, 0, name)
        self._course = memoryview(self._memory)[_COURSE_AT : _COURSE_AT + 8].cast("q")
        self._folds = 1  # number of steps in a record of the course
        self._open: list[float] | None = None
        # The latest record in both parts, for a loss that is read later.
        self._last: list[float] | None = None
        self._last_at = 0
        self.show(0)

    def show(self, phase: int) -> None:
        """Record that the rank is in this phase now."""
        self._live[0] = phase

    def show_since(self, now: int, steps: int, samples: int) -> None:
        """Record that the rank has taken `steps` steps, on `samples` samples."""
        live = self._live
        live[1], live[2], live[3] = now, steps, samples

    def write(self, values: list[float]) -> None:
        """Write the next record, of one step; values as in `StepRecord.values`."""
        step = int(values[_STEP])
        place = _HEADER_SIZE + step % RECENT * _RECORD.size
        if values[_STEPS]:
            _RECORD.pack_into(self._memory, place, *values)
        self._last, self._last_at = values, place
        self._open = values if self._open is None else merged(self._open, values)
        self._write_open()

    def read_loss(self, value: float) -> None:
        """Add a loss that the script has read to the last record."""
        last = self._last
        if last is None or not last[_STEPS]:
            return
        if self._open is not None and self._open is not last:
            _add_loss(self._open, value)
        _add_loss(last, value)
        _RECORD.pack_into(self._memory, self._last_at, *last)
        if self._open is None:
            place = self._course_place(self._course[0] - 1)
            written = list(_RECORD.unpack_from(self._memory, place))
            _add_loss(written, value)
            _RECORD.pack_into(self._memory, place, *written)
        else:
            self._write_open(closing=False)

    def close(self) -> None:
        """Record that the rank has ended."""
        self._live[4] = 1
        self._live.release()
        self._course.release()
        self._memory.close()

    def _write_open(self, *, closing: bool = True) -> None:
        """Write the unfinished record after the last finished one."""
        count = self._course[0]
        opened = self._open
        assert opened is not None
        _RECORD.pack_into(self._memory, self._course_place(count), *opened)
        if closing and opened[_STEPS] >= self._folds:
            self._open = None
            self._course[0] = count + 1
            if count + 1 >= COURSE:
                self._fold()

    def _course_place(self, number: int) -> int:
        return _HEADER_SIZE + (RECENT + number) * _RECORD.size

    def _fold(self) -> None:
        """Merge pairs of records from the front, so a concurrent reader sees no gap."""
        for number in range(COURSE // 2):
            pair = [
                _RECORD.unpack_from(self._memory, self._course_place(2 * number + each)) for each in (0, 1)
            ]
            _RECORD.pack_into(self._memory, self._course_place(number), *merged(*pair))
        self._course[0] = COURSE // 2
        self._folds *= 2


def _add_loss(values: list[float], value: float) -> None:
    known = values[_LOSSES]
    values[_LOSS] = value if not known else (values[_LOSS] * known + value) / (known + 1)
    values[_LOSSES] = known + 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepsOfRank:
    """Contents of a rank's step file.

    Attributes:
        rank, world_size, host: identity of the rank.
        process: its pid on that host.
        wall, monotonic: nanoseconds by both clocks at one moment, the beginning.
        offset: nanoseconds to be added to its monotonic times.
        phase: present phase, by `PHASES`.
        steps, samples: totals so far.
        since: time of the last step; 0 before the first one.
        ended: whether it has ended by itself.
        course: the whole run, in steps that do not overlap.
        recent: its last steps, one by one.
    """

    rank: int
    world_size: int
    host: str
    process: int
    wall: int
    monotonic: int
    offset: int
    phase: int
    steps: int
    samples: int
    since: int
    ended: bool
    course: tuple[StepRecord, ...] = ()
    recent: tuple[StepRecord, ...] = ()


def read_steps(path: Path) -> StepsOfRank | None:
    """Read the file, even while its rank writes; None if missing or incomplete."""
    read = read_parts(path)
    if read is None:
        return None
    steps, ring, whole = read
    kept = [each for each in _records(ring) if each.step > steps.steps - RECENT]
    recent = _following(sorted(kept, key=lambda each: each.step))
    course = _following(_records(whole))
    reached = course[-1].ended if course else 0
    course += [each for each in recent if each.begun >= reached]
    return dataclasses.replace(steps, course=tuple(course), recent=tuple(recent))


def read_parts(path: Path) -> tuple[StepsOfRank, memoryview, memoryview] | None:
    """Read the file without parsing its records: header, ring of recent records, course."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    steps = None if len(data) < _SIZE else _header(data)
    if steps is None:
        return None
    start = _HEADER_SIZE + RECENT * RECORD_BYTES
    # One more than are finished: the one that is being written, if it continues them.
    count = min(COURSE, max(0, _HEADER.unpack_from(data)[7]) + 1)
    view = memoryview(data)
    return steps, view[_HEADER_SIZE:start], view[start : start + count * RECORD_BYTES]


def read_header(path: Path) -> StepsOfRank | None:
    """Read the file without its records; None if missing or incomplete."""
    try:
        with open(path, "rb", buffering=0) as file:
            read = read_head(file.fileno())
    except OSError:
        return None
    return None if read is None else read[0]


def read_head(file: int) -> tuple[StepsOfRank, int] | None:
    """Read the header of an open file, and the number of finished records."""
    if os.fstat(file).st_size < _SIZE:
        return None
    data = os.pread(file, _LIVE + 8 * _LIVE_NUMBERS, 0)
    steps = _header(data)
    return None if steps is None else (steps, max(0, _HEADER.unpack_from(data)[7]))


def read_course(file: int, first: int, end: int) -> bytes:
    """Read records of the course from number `first` to `end`, which is excluded."""
    start = _HEADER_SIZE + (RECENT + first) * RECORD_BYTES
    return os.pread(file, max(0, min(end, COURSE) - first) * RECORD_BYTES, start)


def read_recent(file: int) -> bytes:
    """Read the ring of the last records, in no order, zero where unused."""
    return os.pread(file, RECENT * RECORD_BYTES, _HEADER_SIZE)


def _header(data: bytes) -> StepsOfRank | None:
    magic, rank, world_size, process, wall, monotonic, offset, _, host = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        return None
    phase, since, steps, samples, ended = struct.unpack_from(f"<{_LIVE_NUMBERS}q", data, _LIVE)
    return StepsOfRank(
        rank=rank,
        world_size=world_size,
        host=host.rstrip(b"\0").decode("utf-8", "replace"),
        process=process,
        wall=wall,
        monotonic=monotonic,
        offset=offset,
        phase=phase,
        steps=steps,
        samples=samples,
        since=since,
        ended=bool(ended),
    )


def _records(data: memoryview) -> list[StepRecord]:
    return [StepRecord.of(each) for each in _RECORD.iter_unpack(data) if each[_ENDED]]


def _following(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Select records that continue the one before."""
    kept: list[StepRecord] = []
    for each in records:
        if each.begun < each.ended and (not kept or each.begun >= kept[-1].ended):
            kept.append(each)
    return kept
