"""Pictures of an answer: the best plan's stages over time, memory, Pareto front."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ronde.planner.answer import Answer
from ronde.planner.memory import KINDS
from ronde.planner.simulator import PipelineTimeline
from ronde.trace.number_format import show_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["save"]

_COLOURS = {"F": "#4477aa", "B": "#ee8866", "W": "#bbcc33"}
_NAMES = {"F": "forward", "B": "backward", "W": "weights"}
_NUMBERED = 120


def save(answer: Answer, timeline: PipelineTimeline | None, path: Path) -> None:
    """Draw an answer to a file, in the format of its suffix.

    Args:
        timeline: the best plan's timeline; None where no plan fits.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    grid = figure.add_gridspec(2, 2)
    if timeline is not None:
        _timeline(timeline, answer.choices[0].plan, figure.add_subplot(grid[0, :]))
    _memory(answer, figure.add_subplot(grid[1, 0]))
    _front(answer, figure.add_subplot(grid[1, 1]))
    title = f"{answer.model} on {answer.devices} devices of {answer.cluster}"
    training = answer.choices[0].training if answer.choices else None
    if training is not None:
        price = "" if training.price is None else f", price {training.price:,.0f}"
        title += f"; plan 1: the training takes {show_duration(training.seconds)}{price}"
    figure.suptitle(title, fontsize="medium")
    figure.savefig(path, dpi=120)


def _timeline(timeline: PipelineTimeline, plan: str, axes: Axes) -> None:
    seen: set[str] = set()
    for span in timeline.spans:
        kind = span.turn.kind
        label = _NAMES[kind] if kind not in seen else None
        seen.add(kind)
        axes.barh(
            span.stage,
            span.end - span.start,
            left=span.start,
            color=_COLOURS[kind],
            edgecolor="white",
            linewidth=0.3,
            label=label,
        )
        if len(timeline.spans) <= _NUMBERED:
            middle = (span.start + span.end) / 2
            axes.text(middle, span.stage, str(span.turn.piece), ha="center", va="center", fontsize=7)
    axes.invert_yaxis()
    axes.set_yticks(range(len(timeline.ends)))
    axes.set_ylabel("stage")
    axes.set_xlabel("seconds; the first micro-batches")
    axes.set_title(plan, fontsize="small")
    axes.legend(fontsize="small", loc="upper right")


def _memory(answer: Answer, axes: Axes) -> None:
    if answer.no_fit is not None:
        rows = [("nearest", answer.no_fit.kinds)]
        axes.axvline(answer.no_fit.available / 2**30, color="black", linewidth=0.8)
    else:
        rows = [(str(place), choice.kinds) for place, choice in enumerate(answer.choices, 1)]
    for place, (_, kinds) in enumerate(rows):
        left = 0.0
        for number, kind in enumerate(KINDS):
            width = kinds[kind] / 2**30
            axes.barh(place, width, left=left, color=f"C{number}", label=kind if place == 0 else None)
            left += width
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("GiB allocated on the worst rank")
    axes.set_ylabel("plan by rank")
    axes.legend(fontsize="x-small")


def _front(answer: Answer, axes: Axes) -> None:
    for place, choice in enumerate(answer.choices, 1):
        x, y = choice.seconds, choice.allocated / 2**30
        axes.plot(x, y, "o", color="C0" if choice.pareto else "lightgrey")
        axes.annotate(str(place), (x, y), textcoords="offset points", xytext=(4, 4), fontsize="small")
    front = sorted((each.seconds, each.allocated / 2**30) for each in answer.choices if each.pareto)
    axes.plot([x for x, _ in front], [y for _, y in front], color="C0", linewidth=0.8)
    axes.set_xlabel("seconds a step")
    axes.set_ylabel("GiB")
    axes.set_title("Pareto front (blue)", fontsize="small")
