"""Summary of a rank's time, written at the end of its script.

A few lines of it are printed for the user.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ronde.trace.memory import Memory, largest, memory_line
from ronde.trace.step_clock import StepTimes
from ronde.trace.too_small import Division, division, too_small_line

__all__ = ["RankSummary", "read_summary", "summary_lines"]

NAMES_SHOWN = 6
# A difference of shares from which on a rank is called slower than rank 0.
MUCH = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankSummary:
    """Account of one rank (`rank-N.summary.json`).

    Attributes:
        seconds: duration from the start of the script to its end; imports of ronde and torch come before.
        steps: optimizer steps.
        samples: rows of training batches, each batch once (see `Tally`); 0 if unknown.
        steps_per_second, samples_per_second: rates of the steady part, from the end of the first step to that
            of the last; None where there are fewer than two.
        data: share of the steady part in which the script waited for a loader's batches; of the whole time
            without a steady part.
        communication: share in which it was blocked until other ranks or servers had arrived and bytes were
            there. On CUDA the host does not block, so most of it hides in the rest.
        algorithm: algorithm that summed gradients over ranks, with the reason; "" on one rank.
        sharded: calls of modules on this rank's rows, by the modules' class.
        notes: sentences about deviations of the run from the request, with reasons.
        memory: its peaks.
        compute_plan: items of the plan that concern a rank by itself (its compute values, offload); ""
            without any.
        step_times: times of a usual step; None if not measured.
        plan: plan of the run; "" in a file of an earlier version.
    """

    rank: int
    world_size: int
    seconds: float
    steps: int
    samples: int
    steps_per_second: float | None
    samples_per_second: float | None
    data: float
    communication: float
    algorithm: str
    sharded: Mapping[str, int]
    notes: tuple[str, ...]
    memory: Memory | None = None
    compute_plan: str = ""
    step_times: StepTimes | None = None
    plan: str = ""

    @property
    def compute(self) -> float:
        """Return the remaining share: models, and everything else in the script."""
        return max(0.0, 1.0 - self.data - self.communication)

    def to_json(self) -> str:
        return json.dumps({**dataclasses.asdict(self), "compute": self.compute}, indent=1) + "\n"


def read_summary(path: Path) -> RankSummary | None:
    """Read the summary at `path`; None if missing or incomplete."""
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        fields.setdefault("plan", "")
        known = {field.name: fields[field.name] for field in dataclasses.fields(RankSummary)}
        memory = None if known["memory"] is None else Memory.from_fields(known["memory"])
        times = None if known["step_times"] is None else StepTimes(**known["step_times"])
        return RankSummary(**{**known, "notes": tuple(known["notes"]), "memory": memory, "step_times": times})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def summary_lines(summaries: Sequence[RankSummary]) -> list[str]:
    """Format rank 0's account, and the slowest rank's if it differs much."""
    main = next((each for each in summaries if each.rank == 0), None)
    if main is None:
        return []
    done = "1 optimizer step" if main.steps == 1 else f"{main.steps or 'no'} optimizer steps"
    done = f"{done} in {_seconds(main.seconds)}"
    parts: list[str] = []
    if main.steps_per_second:
        parts.append(f"from the second on {_figure(main.steps_per_second)} steps/s")
    if main.samples_per_second:
        parts.append(f"{_figure(main.samples_per_second)} samples/s")
    memory = _memory_lines(summaries)
    if main.world_size == 1:
        if main.compute_plan:
            how = f"one rank, {main.compute_plan}"
        else:
            how = "one rank runs as plain python does"
        return ["; ".join(each for each in (done, ", ".join(parts), how) if each), *memory, *main.notes]
    lines = [f"{done}; {', '.join([*parts, _shares(main)])} of {'that' if parts else 'the'} time"]
    slowest = min(summaries, key=lambda each: each.communication)
    if main.communication - slowest.communication >= MUCH:
        lines.append(f"the others waited for rank {slowest.rank}: {_shares(slowest)} of its time")
    too_small = too_small_line(_division(summaries, main.world_size), main.steps)
    if too_small:
        lines.append(too_small)
    if main.algorithm:
        lines.append(f"gradients: {main.algorithm}")
    if main.sharded:
        lines.append(f"on shards: {_names(main.sharded)}")
    return [*lines, *memory, *main.notes]


def _division(summaries: Sequence[RankSummary], world_size: int) -> Division | None:
    return division([each.step_times for each in summaries if each.step_times is not None], world_size)


def _memory_lines(summaries: Sequence[RankSummary]) -> list[str]:
    """Format the memory of the rank with the most; empty without tensors."""
    known = [(each.rank, each.memory) for each in summaries if each.memory is not None and each.memory.known]
    if not known:
        return []
    rank, memory = known[largest([memory for _, memory in known])]
    return [memory_line(memory, rank if len(summaries) > 1 else None)]


def _names(calls: Mapping[str, int]) -> str:
    most = sorted(calls.items(), key=lambda item: -item[1])
    told = [f"{name} ({count} call{'s' if count > 1 else ''})" for name, count in most[:NAMES_SHOWN]]
    more = len(most) - len(told)
    return ", ".join(told) + (f", and {more} more" if more else "")


def _shares(summary: RankSummary) -> str:
    return (
        f"data {summary.data:.0%}, compute {summary.compute:.0%}, communication {summary.communication:.0%}"
    )


def _seconds(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _figure(value: float) -> str:
    """Format a number with three significant digits."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
