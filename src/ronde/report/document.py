"""Contents of the page as plain data, for the browser to draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ronde import __version__
from ronde.report.figures import LossCurve, RankFigures, RunFigures, figures_of
from ronde.report.lanes import lanes
from ronde.report.run import RankRun, RunState
from ronde.report.step_arrays import PARTS
from ronde.trace.checkpoint_manifest import checkpoint_name
from ronde.trace.events import Event
from ronde.trace.memory import show_bytes
from ronde.trace.number_format import show_duration, show_number, show_share
from ronde.trace.phases import PHASES
from ronde.trace.step_file import ROUTES

__all__ = ["document", "encoded", "frozen"]

_ROWS = 32
_LINES = 8
_EVENTS = 500

Rank = tuple[RankRun, RankFigures]


def frozen(runs: Sequence[RunState]) -> bytes:
    """Return the state of a page on these runs, as JSON."""
    return encoded({"kind": "runs", "runs": [document(run) for run in runs], "ronde": __version__})


def encoded(data: Any) -> bytes:
    """Return data as JSON; numbers that are not finite become null."""
    return msgspec.json.encode(data)


def document(run: RunState, figures: RunFigures | None = None) -> dict[str, Any]:
    """Return all that the page tells of a run.

    Args:
        figures: the run's figures; None: they are read.
    """
    figures = figures_of(run) if figures is None else figures
    ranks = list(zip(run.ranks, figures.ranks))
    seconds = run.seconds if run.life == "runs" else max(run.seconds, figures.seconds)
    return {
        "id": run.path.name,
        "path": str(run.path),
        "title": title(run),
        "life": run.life,
        "word": "" if run.end is None else run.end.text,
        "facts": _facts(run),
        "begun": wall_begun(run),
        "seconds": seconds,
        "cause": _cause(run),
        "tiles": _tiles(run, figures, seconds),
        "loss": _loss(figures.loss),
        "throughput": _throughput(figures),
        "memory": _memory(ranks, figures),
        "phases": _phases(ranks),
        "shares": _shares(figures),
        "stragglers": _stragglers(ranks),
        "routes": _routes(ranks),
        "timeline": lanes(run, figures),
        "checkpoints": _checkpoints(run),
        "ranks": [_rank(*each) for each in ranks],
        "events": _events(run),
        "notes": _notes(run),
        "folded": max((each.folded for each in figures.ranks), default=1),
    }


def title(run: RunState) -> str:
    return str(run.start.get("script", "")) or run.path.name


def wall_begun(run: RunState) -> float:
    """Return the beginning in seconds since 1970.

    A run without ranks begins with its first event.
    """
    walls = [each.steps.wall / 1e9 for each in run.ranks] or [event.time for event in run.events[:1]]
    return min(walls, default=run.path.stat().st_mtime)


def _facts(run: RunState) -> list[str]:
    world = run.ranks[0].steps.world_size if run.ranks else int(run.start.get("ranks", 0))
    hosts = len({each.steps.host for each in run.ranks})
    facts = [f"plan {run.start['plan']}" if run.start.get("plan") else ""]
    facts.append(_count(world, "rank") + (f" on {_count(hosts, 'host')}" if hosts else "") if world else "")
    facts.append(str(run.start.get("device", "")))
    facts.append(f"seed {run.start['seed']}" if "seed" in run.start else "")
    return [fact for fact in facts if fact]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _cause(run: RunState) -> dict[str, Any] | None:
    if run.cause is not None:
        where = f"rank {run.cause.rank} is on {run.cause.host}" if run.cause.host and run.cause.rank else ""
        evidence = [*run.cause.evidence, *([where] if where else [])]
        return {"summary": run.cause.summary, "evidence": evidence, "fix": run.cause.fix}
    if run.life == "gone":
        fix = f"ask by ronde doctor {run.path}"
        return {"summary": "its processes are gone without a word", "evidence": [], "fix": fix}
    if run.life != "failed":
        return None
    deaths = [event for event in run.events if event.kind == "death"]
    told = deaths[0].text if deaths else "" if run.end is None else run.end.text
    who = f"rank {deaths[0].rank}: " if deaths and deaths[0].rank is not None else ""
    return {"summary": f"{who}{told}", "evidence": [], "fix": ""}


def _tiles(run: RunState, figures: RunFigures, seconds: float) -> list[tuple[str, str, str]]:
    if not figures.ranks:
        return []
    head, main = run.ranks[0].steps, figures.ranks[0]
    pace = main.pace
    unit = "samples/s" if pace is not None and pace.samples else "steps/s"
    mean = 0.0 if pace is None else pace.samples_per_second or pace.steps_per_second
    late = main.samples_per_second if unit == "samples/s" else main.steps_per_second
    live = run.life == "runs" and late > 0
    over = f"{unit} now, {show_number(mean)} on average" if live else f"{unit}, from the second step on"
    peak, rank = max((each.peak, head.rank) for head, each in zip(run.ranks, figures.ranks))
    waited = pace.communication_share if pace else 0.0
    return [
        ("Steps", f"{head.steps:,}", f"in {show_duration(seconds)}"),
        (
            "Throughput",
            show_number(late if live else mean) if pace else "-",
            over if pace else "no steps yet" if run.life == "runs" else "no steps",
        ),
        ("Loss", *_last_loss(figures.loss)),
        ("Waiting for others", show_share(waited), f"of rank {head.rank}'s time"),
        ("Peak memory", show_bytes(peak), f"of a process, rank {rank}"),
    ]


def _last_loss(loss: LossCurve) -> tuple[str, str]:
    if loss.broken is not None:
        last = show_number(float(loss.mean[-1])) if len(loss.mean) else "-"
        return last, f"not a number at step {loss.broken:,}"
    if not len(loss.mean):
        return "-", "the script read none"
    return show_number(float(loss.mean[-1])), f"at step {loss.step[-1]:,.0f}"


def _loss(loss: LossCurve) -> dict[str, Any]:
    found = {"x": short(loss.step), "y": short(loss.mean)}
    if (loss.high > loss.low).any():
        found |= {"low": short(loss.low), "high": short(loss.high)}
    return found


def _throughput(figures: RunFigures) -> dict[str, Any]:
    if not figures.ranks:
        return {"x": [], "y": [], "unit": "steps/s"}
    samples, steps = figures.done
    unit, done = ("samples/s", samples) if samples.any() else ("steps/s", steps)
    return {"x": short(figures.edges[1:]), "y": short(done / np.diff(figures.edges)), "unit": unit}


def _memory(ranks: Sequence[Rank], figures: RunFigures) -> dict[str, Any]:
    on_device = any(each.device for _, each in ranks)
    found: dict[str, Any] = {"x": short(figures.edges[1:]), "device": on_device}
    if len(ranks) <= _LINES:
        lines = [(f"rank {run.rank}", each.memory) for run, each in ranks]
        found["most"] = short(np.max([line for _, line in lines], axis=0)) if lines else []
    else:
        every = np.stack([each.memory for _, each in ranks])
        every = np.where(np.isnan(every), 0, every)
        most = every.max(axis=0)
        found["most"] = short(most)
        lines = [
            (f"highest of {len(ranks)} ranks", most),
            ("median", np.median(every, axis=0)),
            ("lowest", every.min(axis=0)),
        ]
    return {**found, "lines": [{"name": name, "y": short(line)} for name, line in lines]}


def _phases(ranks: Sequence[Rank]) -> dict[str, Any]:
    chosen = _chosen(ranks, lambda each: each.pace.communication_share if each.pace else 1.0)
    rows = [{"name": f"rank {run.rank}", "values": short(each.usual)} for run, each in chosen]
    return {"parts": PARTS, "rows": rows, "of": len(ranks)}


def _shares(figures: RunFigures) -> dict[str, Any]:
    total = np.zeros((len(PARTS), len(figures.edges) - 1))
    for each in figures.ranks:
        total += each.over_time
    whole = total.sum(axis=0)
    shares = np.divide(total, whole, out=np.zeros_like(total), where=whole > 0)
    return {"parts": PARTS, "x": short(figures.edges), "values": [short(part, 3) for part in shares]}


def _stragglers(ranks: Sequence[Rank]) -> dict[str, Any]:
    if not any(each.collectives for _, each in ranks):
        return {"verdict": "There were no collectives.", "rows": [], "of": len(ranks)}
    rows = [
        {
            "name": f"rank {run.rank}",
            "last": each.came_last,
            "late": each.late / max(1, run.steps.steps),
            "waited": each.waited / max(1, run.steps.steps),
        }
        for run, each in sorted(ranks, key=lambda each: -each[1].late)[:_ROWS]
    ]
    return {"verdict": verdict(ranks), "rows": rows, "of": len(ranks)}


def verdict(ranks: Sequence[Rank]) -> str:
    """Return a sentence on the slowest rank."""
    if len(ranks) < 2:
        return "One rank: nobody waits."
    slowest, figures = max(ranks, key=lambda each: each[1].late)
    rest = sum(each.late for _, each in ranks) - figures.late
    if figures.late > 3 * rest / (len(ranks) - 1) and figures.came_last > 1.5 / len(ranks):
        return (
            f"Rank {slowest.rank} stands out: it came last to {show_share(figures.came_last)} of its "
            f"collectives, and the others waited {show_duration(figures.late)} for it."
        )
    return "No rank stands out: the ranks of a host come last in turn."


def _routes(ranks: Sequence[Rank]) -> dict[str, Any]:
    chosen = _chosen(ranks, lambda each: -sum(each.sent))
    rows = [{"name": f"rank {run.rank}", "values": list(each.sent)} for run, each in chosen if sum(each.sent)]
    algorithm = next((run.summary.algorithm for run, _ in ranks if run.summary is not None), "")
    count = sum(each.collectives for _, each in ranks[:1])
    steps = max([1, *(run.steps.steps for run, _ in ranks[:1])])
    told = f"{show_number(count / steps)} collectives a step."
    if algorithm:
        told = f"Gradients: {algorithm}. {told}"
    return {"parts": ROUTES, "rows": rows, "told": told, "of": len(ranks)}


def _checkpoints(run: RunState) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for event in run.events:
        if event.kind == "checkpoint" and "step" in event.more:
            folder = str(event.more.get("folder", ""))
            step = int(event.more["step"])
            there = bool(folder) and (Path(folder) / checkpoint_name(step)).is_dir()
            found.append(
                {
                    "step": step,
                    "at": run.seconds_of(event),
                    "paused": event.more.get("held_up"),
                    "bytes": event.more.get("nbytes"),
                    "folder": folder,
                    "kept": there,
                }
            )
    return found[-_EVENTS:]


def _rank(run: RankRun, figures: RankFigures) -> dict[str, Any]:
    steps = run.steps
    phase = PHASES[steps.phase] if 0 <= steps.phase < len(PHASES) else "other"
    return {
        "rank": steps.rank,
        "host": steps.host,
        "life": run.life,
        "now": f"waits: {run.waits}" if run.waits else phase if run.life == "runs" else "",
        "steps": steps.steps,
        "samples": steps.samples,
        "spent": short(figures.spent),
        "memory": figures.resident,
        "device": figures.device,
        "peak": figures.peak,
    }


def _events(run: RunState) -> list[dict[str, Any]]:
    return [
        {"at": run.seconds_of(event), "time": event.time, "kind": event.kind, "text": _whom(event)}
        for event in run.events[-_EVENTS:]
    ]


def _whom(event: Event) -> str:
    told = event.rank is not None and event.kind not in ("start", "checkpoint")
    return f"rank {event.rank}: {event.text}" if told else event.text


def _notes(run: RunState) -> list[str]:
    return list(dict.fromkeys(note for each in run.ranks if each.summary for note in each.summary.notes))


def _chosen(ranks: Sequence[Rank], weight: Callable[[RankFigures], float]) -> list[Rank]:
    """Return all ranks, or of many the ones with the least weight, in order."""
    kept = sorted(ranks, key=lambda each: (weight(each[1]), each[0].rank))[:_ROWS]
    return sorted(kept, key=lambda each: each[0].rank)


def short(values: Any, digits: int = 6) -> list[float | None]:
    """Round numbers to significant digits; None if not finite."""
    return [
        float(f"{value:.{digits}g}") if math.isfinite(value) else None
        for value in np.asarray(values).tolist()
    ]
