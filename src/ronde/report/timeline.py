"""`ronde run --trace FILE`: what all ranks did, on one clock, for Chrome's trace viewer and Perfetto.

The form is that of "Trace Event Format" (Google): a process for each rank, and in it

    thread 0    the steps; within each its phases; within these the times at which the rank waited
    thread 1    collectives with their bytes, from start to end; they overlap each other and the phases

Times are microseconds since the first span, by the clock of the host of rank 0.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ronde.trace.phases import PHASES
from ronde.trace.spans import Span, read_spans, spans_path
from ronde.trace.step_file import read_steps, steps_path

__all__ = ["nested", "trace_events", "write_timeline"]

_MAIN, _COLLECTIVES = 0, 1
_STEP, _WAIT, _IDLE = "step", "wait", PHASES[0]


def write_timeline(directory: Path, ranks: int, file: Path) -> int:
    """Put the spans of all ranks together and remove them; gives how many there were.

    A name that ends with `.gz` is compressed.

    Raises:
        OSError: the file cannot be written.
    """
    spans = {rank: list(read_spans(spans_path(directory, rank))) for rank in range(ranks)}
    offsets = {rank: _offset(directory, rank) for rank in spans}
    count = sum(map(len, spans.values()))
    temporary = file.with_name(f".{file.name}.new")
    try:
        opened = gzip.open if file.suffix == ".gz" else open
        with opened(temporary, "wt", encoding="utf-8") as stream:
            stream.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            for place, event in enumerate(trace_events(spans, offsets)):
                stream.write(",\n" if place else "")
                stream.write(json.dumps(event, separators=(",", ":")))
            stream.write("\n]}\n")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    for rank in spans:
        spans_path(directory, rank).unlink(missing_ok=True)
    return count


def _offset(directory: Path, rank: int) -> int:
    steps = read_steps(steps_path(directory, rank))
    return 0 if steps is None else steps.offset


def trace_events(spans: Mapping[int, Sequence[Span]], offsets: Mapping[int, int]) -> Iterator[dict[str, Any]]:
    """The events of a timeline, in the order in which a viewer takes them.

    Args:
        spans: of each rank, by its own clock.
        offsets: nanoseconds to be added to it.
    """
    origin = min((span.begin + offsets[rank] for rank, each in spans.items() for span in each), default=0)
    for rank, each in spans.items():
        if not each:
            continue
        yield _named("process_name", rank, _MAIN, f"rank {rank}")
        yield {
            "ph": "M",
            "name": "process_sort_index",
            "pid": rank,
            "tid": _MAIN,
            "args": {"sort_index": rank},
        }
        yield _named("thread_name", rank, _MAIN, "steps and phases")
        yield _named("thread_name", rank, _COLLECTIVES, "collectives")
        shift = offsets[rank] - origin
        for span in nested([span for span in each if span.nbytes < 0 and span.name != _IDLE]):
            kind = "step" if span.name == _STEP else "wait" if span.name == _WAIT else "phase"
            yield {
                "ph": "X",
                "name": f"step {span.number}" if kind == "step" else span.name,
                "cat": kind,
                "pid": rank,
                "tid": _MAIN,
                "ts": (span.begin + shift) / 1000,
                "dur": (span.end - span.begin) / 1000,
                "args": {"step": span.number},
            }
        for place, span in enumerate(span for span in each if span.nbytes >= 0):
            shared = {"name": span.name, "cat": "collective", "id": f"{rank}.{place}"}
            shared |= {"pid": rank, "tid": _COLLECTIVES}
            told = {"bytes": span.nbytes, "step": span.number}
            yield {**shared, "ph": "b", "ts": (span.begin + shift) / 1000, "args": told}
            yield {**shared, "ph": "e", "ts": (span.end + shift) / 1000}


def nested(spans: Sequence[Span]) -> list[Span]:
    """Those of one thread, in an order in which each lies in those before it that are open, or behind them.

    A span that would reach out of the one in which it begins is cut there: it was measured by another reading
    of the clock.
    """
    ordered = sorted(spans, key=lambda span: (span.begin, -span.end, _DEPTH.get(span.name, 1)))
    kept: list[Span] = []
    open_ends: list[int] = []
    for span in ordered:
        while open_ends and open_ends[-1] <= span.begin:
            open_ends.pop()
        end = min(span.end, open_ends[-1]) if open_ends else span.end
        kept.append(span if end == span.end else Span(span.name, span.begin, end, span.number, span.nbytes))
        open_ends.append(end)
    return kept


_DEPTH = {_STEP: 0, _WAIT: 2}


def _named(what: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}
