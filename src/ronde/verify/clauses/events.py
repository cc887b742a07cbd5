"""Compares TensorBoard's event files by the logged values, without the time of day."""

from __future__ import annotations

import dataclasses
import importlib.util
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ronde.verify.clauses.verdict import Tolerance

__all__ = ["can_read_events", "differing_events", "is_event_file"]

# Scalars are stored in single precision: two values that agree may be rounded to neighbours.
_SINGLE = 2.4e-7


def is_event_file(path: Path) -> bool:
    return ".tfevents." in path.name


def can_read_events() -> bool:
    """Return whether TensorBoard is installed, which can read its files."""
    return importlib.util.find_spec("tensorboard") is not None


def differing_events(
    mine: Path, reference: Path, tolerance: Tolerance, repeats: Sequence[Path] = ()
) -> str | None:
    """Describe the first difference but for times; None if the files agree.

    Args:
        repeats: the files of further runs of plain python; events that differ there are passed over.
    """
    from google.protobuf.json_format import MessageToDict
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

    wide = dataclasses.replace(tolerance, values=max(tolerance.values, _SINGLE))

    def events(path: Path) -> list[dict[str, Any]]:
        found = [MessageToDict(Event.FromString(record)) for record in _records(path.read_bytes())]
        for event in found:
            event.pop("wallTime", None)
            event.pop("sourceMetadata", None)
        return found

    ours, theirs = events(mine), events(reference)
    others = [events(repeat) for repeat in repeats]
    if any(len(other) != len(theirs) for other in others):
        return None
    # A third of the tolerance: rounding may take ranks a little further than it took these runs.
    close = dataclasses.replace(wide, values=max(tolerance.values / 3, _SINGLE))
    if len(ours) != len(theirs):
        return f"{len(ours)} events, in plain python {len(theirs)}"
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
        wrong = _differing(one, other, wide, "")
        if wrong and not any(_differing(each[number - 1], other, close, "") for each in others):
            return f"event {number} (step {other.get('step', 0)}){wrong}"
    return None


def _records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a TFRecord file: length, its checksum, data, its checksum."""
    place = 0
    while place + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, place)
        yield content[place + 12 : place + 12 + length]
        place += length + 16


def _differing(mine: Any, reference: Any, tolerance: Tolerance, where: str) -> str | None:
    if type(mine) is not type(reference):
        return f"{where}: {mine!r}, in plain python {reference!r}"
    if isinstance(reference, dict):
        if mine.keys() != reference.keys():
            return f"{where}: fields {sorted(mine)}, in plain python {sorted(reference)}"
        parts = ((f"{where} {key}", mine[key], value) for key, value in reference.items())
    elif isinstance(reference, list):
        if len(mine) != len(reference):
            return f"{where}: {len(mine)} items, in plain python {len(reference)}"
        parts = ((where, mine[index], value) for index, value in enumerate(reference))
    elif isinstance(reference, float):
        agrees = tolerance.close(mine, reference, 0.0)
        # The bars of a histogram are counts.
        if mine.is_integer() and reference.is_integer():
            agrees = agrees or tolerance.close_whole(int(mine), int(reference), 0.0)
        return None if agrees else f"{where}: {mine}, in plain python {reference}"
    else:
        return (
            None if mine == reference else f"{where}: {str(mine)[:60]}, in plain python {str(reference)[:60]}"
        )
    return next(
        (wrong for part in parts if (wrong := _differing(part[1], part[2], tolerance, part[0]))), None
    )
