"""Totals of a rank's step file, read again and again at little cost.

Finished records of the course do not change, so a second reading sums up the records since the first. When
two records have become one meanwhile, all are read again.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from ronde.trace.step_file import ROUTES, StepsOfRank, read_course, read_head, read_recent

__all__ = ["PHASES_OF_TOTALS", "RankTotals", "StepTotals"]

PHASES_OF_TOTALS = ("data", "forward", "backward", "optimizer", "communication", "other")

_NUMBERS = 19
_LAYOUT = np.dtype([("numbers", "<i8", _NUMBERS), ("loss", "<f8"), ("losses", "<i8")])
# Places in a record, as in `StepRecord`.
_STEP, _STEPS, _BEGUN, _ENDED, _DATA, _WAITED = 0, 1, 2, 3, 4, 8
_RESIDENT, _DEVICE, _SENT, _COLLECTIVES, _LAST, _LATE = 10, 11, 12, 16, 17, 18
_OTHER = _NUMBERS  # behind the numbers of a record, in the sums
_NS = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankTotals:
    """Totals of one rank since its start.

    Attributes:
        head: identity of the rank, its clocks and its present numbers.
        steps: steps that it has taken itself, without those before a checkpoint.
        seconds: seconds in each of `PHASES_OF_TOTALS`.
        sent: bytes by each of `ROUTES` that is used.
        collectives, last: number of collectives, and of those to which it came last of its host.
        late: seconds that the last but one had waited by then.
        resident, device: present bytes of the process, and on its device.
        loss: the latest loss that the script read; None without any.
    """

    head: StepsOfRank
    steps: int
    seconds: Mapping[str, float]
    sent: Mapping[str, int]
    collectives: int
    last: int
    late: float
    resident: int
    device: int
    loss: float | None

    @property
    def last_step(self) -> float:
        """Time of its last step or start, in seconds by its host's clock."""
        head = self.head
        return (head.wall + max(0, head.since - head.monotonic)) * _NS


@final
class StepTotals:
    """Reader of one step file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget(None)

    def read(self) -> RankTotals | None:
        """Read new records, even while the rank writes; None if incomplete."""
        try:
            file = os.open(self._path, os.O_RDONLY)
        except OSError:
            return None
        try:
            read = read_head(file)
            return None if read is None else self._read(file, *read)
        except OSError:
            return None
        finally:
            os.close(file)

    def _forget(self, start: tuple[int, int] | None) -> None:
        """Read from the beginning next time, of the process with this start."""
        self._start = start
        self._finished = 0
        self._mark = b""
        self._reached = 0
        self._sums = np.zeros(_NUMBERS + 1, np.int64)

    def _read(self, file: int, head: StepsOfRank, finished: int) -> RankTotals:
        start = head.process, head.wall
        last = read_course(file, self._finished - 1, self._finished) if self._finished else b""
        # A loss that is read late changes the end of the record.
        same = last[: 8 * _NUMBERS] == self._mark
        if start != self._start or finished < self._finished or not same:
            self._forget(start)
        raw = read_course(file, self._finished, finished + 1)
        records = np.frombuffer(raw, _LAYOUT)
        new = max(0, finished - self._finished)
        self._sums = self._sums + self._sum(records[:new])
        if new:
            self._finished = finished
            self._mark = raw[(new - 1) * _LAYOUT.itemsize :][: 8 * _NUMBERS]
        reached = self._reached
        sums = self._sums + self._sum(records[new:])
        self._reached = reached  # the record that is still open is read again
        return _totals(head, sums, records, np.frombuffer(read_recent(file), _LAYOUT))

    def _sum(self, records: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Sum up the records, each of which continues the one before."""
        numbers = records["numbers"]
        ends = np.maximum.accumulate(np.append(self._reached, numbers[:, _ENDED]))
        numbers = numbers[(numbers[:, _BEGUN] >= ends[:-1]) & (numbers[:, _ENDED] > numbers[:, _BEGUN])]
        if len(numbers):
            self._reached = int(numbers[-1, _ENDED])
        known = numbers[:, _DATA : _WAITED + 1].sum(1)
        other = np.maximum(0, numbers[:, _ENDED] - numbers[:, _BEGUN] - known).sum()
        return np.append(numbers.sum(0), other)


def _totals(
    head: StepsOfRank, sums: np.ndarray[Any, Any], course: np.ndarray[Any, Any], ring: np.ndarray[Any, Any]
) -> RankTotals:
    ring = ring[ring["numbers"][:, _STEPS] > 0]
    newest = ring[np.argsort(ring["numbers"][:, _STEP])]
    read = newest[newest["losses"] > 0]
    latest = newest if len(newest) else course
    memory = (
        [int(value) for value in latest["numbers"][-1, _RESIDENT : _DEVICE + 1]] if len(latest) else [0, 0]
    )
    # Short steps share a record, which is written when it is long enough.
    unwritten = max(0, head.steps - int(newest["numbers"][-1, _STEP])) if len(newest) else 0
    seconds = [*sums[_DATA : _WAITED + 1], sums[_OTHER]]
    sent = zip(ROUTES, sums[_SENT : _SENT + len(ROUTES)], strict=True)
    return RankTotals(
        head=head,
        steps=int(sums[_STEPS]) + unwritten,
        seconds={name: float(value) * _NS for name, value in zip(PHASES_OF_TOTALS, seconds, strict=True)},
        sent={route: int(nbytes) for route, nbytes in sent if nbytes},
        collectives=int(sums[_COLLECTIVES]),
        last=int(sums[_LAST]),
        late=float(sums[_LATE]) * _NS,
        resident=memory[0],
        device=memory[1],
        loss=float(read["loss"][-1]) if len(read) else None,
    )
