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

from ronde.report.step_arrays import LAYOUT, PARTS, Records, parts_of
from ronde.trace.step_file import RECORD_BYTES, ROUTES, StepsOfRank, read_course, read_head, read_recent

__all__ = ["RankTotals", "StepTotals"]

_COUNTED = ("steps", "collectives", "last", "late")
# The loss and what follows it may be written later than the rest of a record.
_UNCHANGED_BYTES = LAYOUT.fields["loss"][1] if LAYOUT.fields else RECORD_BYTES
_NS = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankTotals:
    """Totals of one rank since its start.

    Attributes:
        head: identity of the rank, its clocks and its present numbers.
        steps: steps that it has taken itself, without those before a checkpoint.
        seconds: seconds in each of `PARTS`.
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
        self._sums = _sums_of(np.empty(0, LAYOUT))

    def _read(self, file: int, head: StepsOfRank, finished: int) -> RankTotals:
        start = head.process, head.wall
        last = read_course(file, self._finished - 1, self._finished) if self._finished else b""
        same = last[:_UNCHANGED_BYTES] == self._mark
        if start != self._start or finished < self._finished or not same:
            self._forget(start)
        raw = read_course(file, self._finished, finished + 1)
        records = np.frombuffer(raw, LAYOUT)
        new = max(0, finished - self._finished)
        self._sums = self._sums + self._sum(records[:new])
        if new:
            self._finished = finished
            self._mark = raw[(new - 1) * RECORD_BYTES :][:_UNCHANGED_BYTES]
        reached = self._reached
        sums = self._sums + self._sum(records[new:])
        self._reached = reached  # the record that is still open is read again
        return _totals(head, sums, records, np.frombuffer(read_recent(file), LAYOUT))

    def _sum(self, records: Records) -> np.ndarray[Any, Any]:
        """Sum up the records, each of which continues the one before."""
        ends = np.maximum.accumulate(np.append(self._reached, records["ended"]))
        records = records[(records["begun"] >= ends[:-1]) & (records["ended"] > records["begun"])]
        if len(records):
            self._reached = int(records["ended"][-1])
        return _sums_of(records)


def _sums_of(records: Records) -> np.ndarray[Any, Any]:
    """Sum up the counted fields, bytes by route, and seconds by part."""
    counted = [records[name].sum() for name in _COUNTED]
    return np.concatenate((counted, records["sent"].sum(0), parts_of(records).sum(1)))


def _totals(head: StepsOfRank, sums: np.ndarray[Any, Any], course: Records, ring: Records) -> RankTotals:
    ring = ring[ring["steps"] > 0]
    newest = ring[np.argsort(ring["step"])]
    read = newest[newest["losses"] > 0]
    latest = newest if len(newest) else course
    # Short steps share a record, which is written when it is long enough.
    unwritten = max(0, head.steps - int(newest["step"][-1])) if len(newest) else 0
    (steps, collectives, last, late), sent, seconds = np.split(sums, np.cumsum((len(_COUNTED), len(ROUTES))))
    return RankTotals(
        head=head,
        steps=int(steps) + unwritten,
        seconds=dict(zip(PARTS, seconds.tolist(), strict=True)),
        sent={route: int(nbytes) for route, nbytes in zip(ROUTES, sent, strict=True) if nbytes},
        collectives=int(collectives),
        last=int(last),
        late=float(late) * _NS,
        resident=int(latest["resident"][-1]) if len(latest) else 0,
        device=int(latest["device"][-1]) if len(latest) else 0,
        loss=float(read["loss"][-1]) if len(read) else None,
    )
