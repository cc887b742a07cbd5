"""Timeline on the page: a few steps of each rank.

A run with `--trace` leaves an excerpt of its spans in its directory. Without one the last steps are drawn
from their records, which hold how long each part took but not when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ronde.report.figures import RunFigures
from ronde.report.run import RunState
from ronde.report.step_arrays import PARTS, parts_of
from ronde.trace.phases import PHASES
from ronde.trace.spans import Span
from ronde.trace.whole_file import replace_file

__all__ = ["excerpt", "lanes", "write_excerpt"]

_FILE = "spans.json"
_RANKS = 16
_STEPS = 6
_SPANS = 20_000
_IDLE = PHASES[0]

Lane = dict[str, Any]


def lanes(run: RunState, figures: RunFigures) -> dict[str, Any]:
    """Return the timeline: for each rank spans of (part, begin, end, step), in seconds."""
    found = _read(run.path / _FILE)
    if found is not None:
        return {"traced": True, "lanes": found, "of": len(run.ranks)}
    ranks = sorted(zip(run.ranks, figures.ranks), key=lambda each: -each[1].late)[:_RANKS]
    drawn: list[Lane] = []
    first = min(
        (int(each.steps["begun"][0]) + rank.steps.offset for rank, each in ranks if len(each.steps)),
        default=0,
    )
    for rank, each in sorted(ranks, key=lambda each: each[0].rank):
        spans: list[list[Any]] = []
        for record, parts in zip(each.steps, parts_of(each.steps).T):
            at = (int(record["begun"]) + rank.steps.offset - first) / 1e9
            whole = (int(record["ended"]) - int(record["begun"])) / 1e9
            scale = whole / max(float(parts.sum()), 1e-12)
            for part, seconds in zip(PARTS, (parts * scale).tolist()):
                if seconds > 0:
                    spans.append([part, _short(at), _short(at + seconds), int(record["step"])])
                at += seconds
        drawn.append({"name": f"rank {rank.rank}", "spans": spans})
    return {"traced": False, "lanes": drawn, "of": len(run.ranks)}


def excerpt(spans: Mapping[int, Sequence[Span]]) -> list[Lane]:
    """Choose steps and ranks to be shown; spans are by one clock.

    The first step is left out where there are others: models are observed in it.
    """
    numbers = sorted({span.number for each in spans.values() for span in each if span.name == "step"})
    chosen = set(numbers[1 : 1 + _STEPS] or numbers)
    kept = {rank: [span for span in spans[rank] if span.number in chosen] for rank in sorted(spans)[:_RANKS]}
    while len(chosen) > 1 and sum(map(len, kept.values())) > _SPANS:
        chosen.remove(max(chosen))
        kept = {rank: [span for span in each if span.number in chosen] for rank, each in kept.items()}
    first = min((span.begin for each in kept.values() for span in each), default=0)
    return [
        {
            "name": f"rank {rank}",
            "spans": _timed((span for span in each if span.nbytes < 0 and _is_part(span)), first),
            "collectives": _timed((span for span in each if span.nbytes >= 0), first),
        }
        for rank, each in kept.items()
    ]


def write_excerpt(directory: Path, spans: Mapping[int, Sequence[Span]]) -> None:
    """Write the excerpt into the run directory. A full disk is ignored."""
    replace_file(directory / _FILE, msgspec.json.encode(excerpt(spans)).decode())


def _is_part(span: Span) -> bool:
    return span.name not in ("step", _IDLE)


def _timed(spans: Iterable[Span], first: int) -> list[list[Any]]:
    """Return spans as lists, waits last: they are drawn over the phases around them."""
    ordered = sorted(spans, key=lambda span: (span.name == "wait", span.begin))[:_SPANS]
    return [
        [
            "communication" if span.name == "wait" else span.name,
            _short((span.begin - first) / 1e9),
            _short((span.end - first) / 1e9),
            span.number if span.nbytes < 0 else span.nbytes,
        ]
        for span in ordered
    ]


def _short(seconds: float) -> float:
    return round(seconds, 7)


def _read(path: Path) -> list[Lane] | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Lane])
    except (OSError, msgspec.DecodeError):
        return None
