"""Values of a run's metrics, from the files in its directory.

Ranks take no part: they have written these files anyway. Files of ranks that were started again keep their
totals, so no counter goes backward at a restart.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from ronde import __version__
from ronde.messages import lift
from ronde.report.metrics.families import FAMILIES
from ronde.report.metrics.step_totals import RankTotals, StepTotals
from ronde.trace.events import Event, read_events
from ronde.trace.evidence import evidence_path
from ronde.trace.explanation import Explanation, read_explanation
from ronde.trace.heartbeat import look_at, vitals_path
from ronde.trace.launch_record import LaunchRecord, read_launch_record

__all__ = ["RunFacts", "RunMetrics", "Values"]

Values = Mapping[str, Mapping[tuple[str, ...], float]]
"""Value of each metric by its labels' values."""

_STEPS_FILE = re.compile(r"rank-(\d+)(?:\.attempt-(\d+))?\.steps")
_COUNTERS = frozenset(family.name for family in FAMILIES if family.kind == "counter")
_ALONE: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """Facts about a run that its launcher knows.

    Attributes:
        run_id, script, plan, seed: what runs.
        checkpoint_every: steps between checkpoints, or 0, and seconds; None: none are made.
        since: seconds since 1970; older files in the directory belong to an earlier run.
    """

    run_id: str
    script: str
    plan: str
    seed: int
    checkpoint_every: tuple[int, float] | None = None
    since: float = 0.0


@final
class RunMetrics:
    """Metrics of one run.

    Args:
        directory: its run directory.
    """

    def __init__(self, directory: Path, facts: RunFacts) -> None:
        self._directory, self._facts = directory, facts
        self._files: dict[str, StepTotals] = {}
        self._highest: dict[tuple[str, tuple[str, ...]], float] = {}

    def values(self) -> Values:
        """Read the present values; metrics without any are left out."""
        record = read_launch_record(self._directory / "launch.json")
        past, present = self._totals()
        events = [each for each in read_events(self._directory) if each.time >= self._facts.since]
        found: dict[str, Mapping[tuple[str, ...], float]] = {
            **_of_run(self._facts, record, present, events),
            **_of_ranks(past, present, record),
            **self._of_vitals(present),
            **_of_events(events, self._facts.checkpoint_every),
            **self._of_cause(events),
        }
        return {
            f"ronde_run_{name}": self._never_less(f"ronde_run_{name}", series)
            for name, series in found.items()
            if series
        }

    def _totals(self) -> tuple[list[RankTotals], dict[int, RankTotals]]:
        """Read the totals of earlier starts of ranks, and of the present ranks."""
        past: list[RankTotals] = []
        present: dict[int, RankTotals] = {}
        try:
            names = os.listdir(self._directory)
        except OSError:
            names = []
        found = {name: match for name in names if (match := _STEPS_FILE.fullmatch(name))}
        self._files = {
            name: self._files.get(name) or StepTotals(self._directory / name) for name in sorted(found)
        }
        for name, file in self._files.items():
            totals = file.read()
            if totals is None or totals.head.wall / 1e9 < self._facts.since:
                continue
            if found[name][2]:
                past.append(totals)
            else:
                present[totals.head.rank] = totals
        return past, dict(sorted(present.items()))

    def _of_vitals(self, present: Mapping[int, RankTotals]) -> dict[str, Mapping[tuple[str, ...], float]]:
        seen = {rank: look_at(vitals_path(self._directory, rank)) for rank in present}
        return {
            "gradients_finite": {
                (str(rank),): float(not each.not_finite) for rank, each in seen.items() if each is not None
            }
        }

    def _of_cause(self, events: Sequence[Event]) -> dict[str, Mapping[tuple[str, ...], float]]:
        """Return the newest explanation of this start of the ranks, or earlier ones."""
        folder = evidence_path(self._directory, "explanation").parent
        times: dict[Path, float] = {}
        for path in folder.glob("*explanation.json"):
            try:
                times[path] = path.stat().st_mtime
            except OSError:
                continue
        newest = max(times, key=lambda path: times[path], default=None)
        if newest is None or times[newest] < self._facts.since:
            return {}
        explanation = read_explanation(self._directory, newest.name.removesuffix(".json"))
        if explanation is None:
            return {}
        rank = "" if explanation.rank is None else str(explanation.rank)
        labels = (explanation.cause, _code(explanation, events), rank, explanation.host)
        return {"last_cause_info": {labels: 1.0}, "last_cause_timestamp_seconds": {_ALONE: times[newest]}}

    def _never_less(
        self, name: str, series: Mapping[tuple[str, ...], float]
    ) -> Mapping[tuple[str, ...], float]:
        """Return a counter's values, or the last ones where a file is incomplete."""
        if name not in _COUNTERS:
            return series
        for labels, value in series.items():
            self._highest[name, labels] = max(value, self._highest.get((name, labels), 0.0))
        return {labels: value for (known, labels), value in self._highest.items() if known == name}


def _of_run(
    facts: RunFacts, record: LaunchRecord | None, present: Mapping[int, RankTotals], events: Sequence[Event]
) -> dict[str, Mapping[tuple[str, ...], float]]:
    info = (facts.run_id, facts.script, facts.plan, str(facts.seed), __version__)
    hosts = {_host(each, record) for each in present.values()}
    starts = [each.time for each in events] + [each.head.wall / 1e9 for each in present.values()]
    main = present.get(0)
    alone: dict[str, float | None] = {
        "start_timestamp_seconds": min(starts, default=None),
        "ranks": max((each.head.world_size for each in present.values()), default=None),
        "hosts": float(len(hosts)) if hosts else None,
        "step": None if main is None else main.head.steps,
        "loss": None if main is None else main.loss,
    }
    return {
        "info": {info: 1.0},
        **{name: {_ALONE: float(value)} for name, value in alone.items() if value is not None},
    }


def _of_ranks(
    past: Iterable[RankTotals], present: Mapping[int, RankTotals], record: LaunchRecord | None
) -> dict[str, Mapping[tuple[str, ...], float]]:
    """Return counters of all starts of the ranks, and gauges of the present ones."""
    counted: dict[str, dict[tuple[str, ...], float]] = {}
    for each in (*past, *present.values()):
        for name, series in _counts_of(each).items():
            total = counted.setdefault(f"{name}_total", {})
            for labels, value in series.items():
                total[labels] = total.get(labels, 0.0) + value
    gauges: dict[str, dict[tuple[str, ...], float]] = {
        "rank_info": {(str(rank), _host(each, record)): 1.0 for rank, each in present.items()},
        "last_step_timestamp_seconds": {
            (str(rank),): each.last_step + _later(each, record) for rank, each in present.items()
        },
        "resident_memory_bytes": {(str(rank),): each.resident for rank, each in present.items()},
        "device_memory_bytes": {(str(rank),): each.device for rank, each in present.items() if each.device},
    }
    return {**counted, **gauges}


def _counts_of(totals: RankTotals) -> dict[str, Mapping[tuple[str, ...], float]]:
    """Return the counts of one rank."""
    rank = str(totals.head.rank)
    return {
        "steps": {(rank,): totals.steps},
        "samples": {_ALONE: totals.head.samples} if totals.head.rank == 0 else {},
        "phase_seconds": {(rank, phase): seconds for phase, seconds in totals.seconds.items()},
        "collectives": {(rank,): totals.collectives},
        "last_arrivals": {(rank,): totals.last},
        "others_wait_seconds": {(rank,): totals.late},
        "sent_bytes": {(rank, route): nbytes for route, nbytes in totals.sent.items()},
    }


def _of_events(
    events: Sequence[Event], every: tuple[int, float] | None
) -> dict[str, Mapping[tuple[str, ...], float]]:
    reasons = Counter(each.more.get("reason") for each in events if each.kind == "restart")
    found: dict[str, Mapping[tuple[str, ...], float]] = {
        "restarts_total": {(reason,): reasons[reason] for reason in ("failure", "hosts")}
    }
    if every is None:
        return found
    saved = [each for each in events if each.kind == "checkpoint"]
    found |= {
        "checkpoints_total": {_ALONE: len(saved)},
        "checkpoint_paused_seconds_total": {_ALONE: _sum(saved, "held_up")},
        "checkpoint_write_seconds_total": {_ALONE: _sum(saved, "written")},
        "checkpoint_interval_steps" if every[0] else "checkpoint_interval_seconds": {
            _ALONE: every[0] or every[1]
        },
    }
    if saved:
        found |= {
            "checkpoint_last_timestamp_seconds": {_ALONE: saved[-1].time},
            "checkpoint_last_step": {_ALONE: _sum(saved[-1:], "step")},
            "checkpoint_last_bytes": {_ALONE: _sum(saved[-1:], "nbytes")},
        }
    return found


def _sum(events: Iterable[Event], name: str) -> float:
    return float(sum(each.more.get(name, 0) for each in events))


def _code(explanation: Explanation, events: Sequence[Event]) -> str:
    """Return the code of a cause, or of its failure; "" without one."""
    failed = [each for each in events if each.kind == "end" and each.more.get("exit_code")]
    told = (explanation.summary, explanation.fix, *(each.text for each in failed[-1:]))
    return next((code for text in told if (code := lift(text)[0])), "")


def _node(totals: RankTotals, record: LaunchRecord | None) -> Any:
    nodes = () if record is None else record.nodes
    return next((each for each in nodes if totals.head.rank in each.pids), None)


def _host(totals: RankTotals, record: LaunchRecord | None) -> str:
    """Return the name of a rank's host, as the user gave it if known."""
    node = _node(totals, record)
    return node.name if node is not None and node.name else totals.head.host


def _later(totals: RankTotals, record: LaunchRecord | None) -> float:
    """Return the seconds by which the launcher's wall clock is ahead of the rank's."""
    node = _node(totals, record)
    return 0.0 if node is None else node.wall
