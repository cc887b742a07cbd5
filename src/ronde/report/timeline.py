"""`ronde run --trace FILE`: all ranks' spans on one clock, for Chrome's viewer and Perfetto.

The format is "Trace Event Format" (Google): a process for each rank, and in it

    thread 0    the steps; within each its phases; within these the times at which the rank waited
    thread 1    collectives with their bytes, from start to end; they overlap each other and the phases

Times are microseconds since the first span, by the clock of the launcher's host. Clocks of other hosts were
compared with it at the start and at the end of the run, and are taken to drift evenly between.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ronde.report.lanes import write_excerpt
from ronde.trace.launch_record import LaunchedNode, read_launch_record
from ronde.trace.phases import PHASES
from ronde.trace.spans import SPANS_FILE, Span, read_spans

__all__ = ["WrittenTimeline", "nested", "trace_events", "write_timeline"]

_MAIN, _COLLECTIVES = 0, 1
_STEP, _WAIT, _IDLE = "step", "wait", PHASES[0]


class WrittenTimeline(NamedTuple):
    """Facts about a timeline that was written.

    Attributes:
        spans: number of spans.
        hosts: number of hosts.
        error: seconds by which spans of two hosts may be shifted against each other; 0.0 on one host.
    """

    spans: int
    hosts: int
    error: float


def write_timeline(directory: Path, file: Path) -> WrittenTimeline:
    """Merge the spans of all ranks into one file; return its facts.

    The ranks' own files are removed. A name that ends with `.gz` is compressed.

    Raises:
        OSError: the file cannot be written.
    """
    found = ((SPANS_FILE.fullmatch(path.name), path) for path in directory.iterdir())
    paths = {int(match[1]): path for match, path in found if match is not None}
    record = read_launch_record(directory / "launch.json")
    nodes = {} if record is None else {rank: node for node in record.nodes for rank in node.pids}
    spans = {rank: list(_by_one_clock(path, nodes.get(rank))) for rank, path in sorted(paths.items())}
    there = {node.run_id: node for rank, node in nodes.items() if spans.get(rank)}
    hosts = {rank: node.name for rank, node in nodes.items()} if len(there) > 1 else {}
    # Each is compared with the launcher's, so two of them may be wrong by both errors.
    errors = sorted(node.error for node in there.values())
    made = WrittenTimeline(sum(map(len, spans.values())), len(there), sum(errors[-2:]))
    write_excerpt(directory, spans)
    temporary = file.with_name(f".{file.name}.new")
    try:
        opened = gzip.open if file.suffix == ".gz" else open
        with opened(temporary, "wt", encoding="utf-8") as stream:
            about = _about_clocks(there.values(), made.error) if hosts else {}
            stream.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n')
            for place, event in enumerate(trace_events(spans, hosts)):
                stream.write(",\n" if place else "")
                stream.write(json.dumps(event, separators=(",", ":")))
            stream.write("\n]}\n")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    for path in paths.values():
        path.unlink(missing_ok=True)
    return made


def _by_one_clock(path: Path, node: LaunchedNode | None) -> Iterator[Span]:
    """Read the spans of a rank, by the monotonic clock of the launcher's host."""
    for span in read_spans(path):
        if node is None:
            yield span
        else:
            begin, end = map(node.by_launchers_clock, (span.begin, span.end))
            yield dataclasses.replace(span, begin=begin, end=end)


def _about_clocks(nodes: Iterable[LaunchedNode], error: float) -> dict[str, str]:
    """Return notes for a viewer on the accuracy of the hosts' clocks."""
    return {
        "clock": "that of the launcher's host; clocks of hosts were compared at the start and at the end",
        "largest error between two hosts": f"{error * 1e3:.3f} ms",
        **{f"error of {node.name}": f"{node.error * 1e3:.3f} ms" for node in nodes},
    }


def trace_events(spans: Mapping[int, Sequence[Span]], hosts: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    """Yield the events of a timeline, in the order that viewers expect.

    Args:
        spans: spans of each rank, by one clock.
        hosts: names of the hosts of ranks, where there are several.
    """
    origin = min((span.begin for each in spans.values() for span in each), default=0)
    for rank, each in spans.items():
        if not each:
            continue
        yield _named(
            "process_name", rank, _MAIN, f"rank {rank}{f' on {hosts[rank]}' if rank in hosts else ''}"
        )
        yield {
            "ph": "M",
            "name": "process_sort_index",
            "pid": rank,
            "tid": _MAIN,
            "args": {"sort_index": rank},
        }
        yield _named("thread_name", rank, _MAIN, "steps and phases")
        yield _named("thread_name", rank, _COLLECTIVES, "collectives")
        for span in nested([span for span in each if span.nbytes < 0 and span.name != _IDLE]):
            kind = "step" if span.name == _STEP else "wait" if span.name == _WAIT else "phase"
            yield {
                "ph": "X",
                "name": f"step {span.number}" if kind == "step" else span.name,
                "cat": kind,
                "pid": rank,
                "tid": _MAIN,
                "ts": (span.begin - origin) / 1000,
                "dur": (span.end - span.begin) / 1000,
                "args": {"step": span.number},
            }
        for place, span in enumerate(span for span in each if span.nbytes >= 0):
            shared = {"name": span.name, "cat": "collective", "id": f"{rank}.{place}"}
            shared |= {"pid": rank, "tid": _COLLECTIVES}
            told = {"bytes": span.nbytes, "step": span.number}
            yield {**shared, "ph": "b", "ts": (span.begin - origin) / 1000, "args": told}
            yield {**shared, "ph": "e", "ts": (span.end - origin) / 1000}


def nested(spans: Sequence[Span]) -> list[Span]:
    """Sort the spans of one thread, so that each follows its enclosing ones.

    A span that reaches out of the one in which it begins is cut there: it was measured by another reading of
    the clock.
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
