"""Records of a rank's steps as arrays.

A run of 256 ranks has a million of them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from ronde.trace.step_file import RECENT, RECORD_BYTES, ROUTES, StepRecord, read_parts

__all__ = ["LAYOUT", "PARTS", "Course", "Records", "of_records", "parts_of", "read_course"]

PARTS = ("data", "forward", "backward", "optimizer", "communication", "other")
"""The parts of a rank's time, in the order of their display."""

Records = np.ndarray[Any, Any]
"""Structured array with the fields of `StepRecord`."""


def _type(name: str) -> tuple[str, ...] | tuple[str, str, int]:
    if name == "sent":
        return name, "<i8", len(ROUTES)
    return name, "<f8" if name == "loss" else "<i8"


LAYOUT = np.dtype([_type(field.name) for field in dataclasses.fields(StepRecord)])
"""Layout of a record in the file."""
assert LAYOUT.itemsize == RECORD_BYTES


@dataclasses.dataclass(frozen=True, slots=True)
class Course:
    """A rank's records: the whole run, and its last steps one by one."""

    whole: Records
    recent: Records


def read_course(path: Path) -> Course:
    """Read a step file; without records if it is missing."""
    read = read_parts(path)
    if read is None:
        return Course(np.empty(0, LAYOUT), np.empty(0, LAYOUT))
    steps, ring, course = read
    found = _written(np.frombuffer(ring, LAYOUT))
    order = np.argsort(found["step"], kind="stable")
    recent = _following(found[order[found["step"][order] > steps.steps - RECENT]])
    whole = _following(_written(np.frombuffer(course, LAYOUT)))
    later = recent[recent["begun"] >= (whole["ended"][-1] if len(whole) else 0)]
    return Course(np.concatenate((whole, later)) if len(later) else whole, recent)


def of_records(*records: StepRecord) -> Records:
    """Return records as an array.

    >>> len(of_records())
    0
    """
    rows = [tuple(getattr(each, str(name)) for name in LAYOUT.names or ()) for each in records]
    return np.array(rows, LAYOUT)


def _written(records: Records) -> Records:
    """Leave out places without a record, of which a course has one."""
    ended = records["ended"]
    if len(ended) and ended[:-1].all():
        return records if ended[-1] else records[:-1]
    return records[ended != 0]


def _following(records: Records) -> Records:
    """Select records that continue the one before."""
    begun, ended = records["begun"], records["ended"]
    if (begun < ended).all() and (begun[1:] >= ended[:-1]).all():
        return records
    kept: list[int] = []
    reached = None
    for place, (first, last) in enumerate(zip(begun.tolist(), ended.tolist())):
        if first < last and (reached is None or first >= reached):
            kept.append(place)
            reached = last
    return records[kept]


def parts_of(records: Records) -> np.ndarray[Any, Any]:
    """Return the seconds in each of `PARTS`, an array of parts by records."""
    known = np.stack([records[name] for name in ("data", "forward", "backward", "optimizer", "waited")])
    other = np.maximum(0, records["ended"] - records["begun"] - known.sum(axis=0))
    return np.concatenate((known, other[None])) / 1e9
