"""Events of a whole run: lines of JSON in its directory, from several writers.

    {"time": 1764060000.1, "kind": "start", "text": "train.py", "rank": 0, "plan": "ddp"}

A line is written in one piece, so several processes may write at once; unreadable lines are passed over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Event", "append_events", "events_path", "read_events", "write_event"]


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One event of a run.

    Attributes:
        time: seconds by the wall clock.
        kind: a word: `start`, `end`, `notice`, `death`, `restart`, `checkpoint`.
        text: sentence that a user is told.
        rank: rank that it concerns; None: all.
        more: further facts, by name.
    """

    time: float
    kind: str
    text: str
    rank: int | None = None
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def events_path(directory: Path) -> Path:
    return directory / "events.jsonl"


def write_event(directory: Path, kind: str, text: str, *, rank: int | None = None, **more: Any) -> None:
    """Append an event that happens now. A full disk does not end a run."""
    # Looked up at each call: the script's clock is patched, and this code reads the real one.
    line = json.dumps({"time": time.time(), "kind": kind, "text": text, "rank": rank, **more}) + "\n"
    with contextlib.suppress(OSError):
        # os.open is not mediated.
        file = os.open(events_path(directory), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)


def append_events(directory: Path, lines: bytes, *, later: float) -> None:
    """Append events that were written on another host. A full disk is ignored.

    Args:
        later: seconds to be added to the times of that host's clock.
    """
    told: list[bytes] = []
    for line in lines.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            fields = json.loads(line)
            told.append(json.dumps({**fields, "time": fields["time"] + later}).encode() + b"\n")
    with contextlib.suppress(OSError), events_path(directory).open("ab", buffering=0) as stream:
        stream.write(b"".join(told))


def read_events(directory: Path) -> list[Event]:
    """Read all events, in the order of time."""
    try:
        lines = events_path(directory).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    events: list[Event] = []
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            fields = json.loads(line)
            taken = {name: fields.pop(name) for name in ("time", "kind", "text")}
            rank = fields.pop("rank", None)
            events.append(
                Event(
                    float(taken["time"]),
                    str(taken["kind"]),
                    str(taken["text"]),
                    None if rank is None else int(rank),
                    fields,
                )
            )
    return sorted(events, key=lambda event: event.time)
