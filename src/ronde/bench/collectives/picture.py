"""A report on collectives as curves: time over size, one for each contender, a panel for each operation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ronde.bench.collectives.contender import CONTENDERS
from ronde.bench.collectives.report import CollectivesReport, Result
from ronde.bench.collectives.size import show_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "save"]

_ROW = 3


def draw(report: CollectivesReport) -> Figure:
    """A figure of all operations."""
    from matplotlib.figure import Figure

    operations = list(dict.fromkeys(result.case.operation for result in report.results))
    width = min(_ROW, len(operations))
    height = -(-len(operations) // width)
    figure = Figure(figsize=(4.5 * width, 1.0 + 3.5 * height), layout="constrained")
    panels = figure.subplots(height, width, squeeze=False).flatten()
    colours = {name: f"C{place}" for place, name in enumerate(CONTENDERS)}
    handles: dict[str, Any] = {}
    for operation, axes in zip(operations, panels, strict=False):
        found = [result for result in report.results if result.case.operation == operation]
        handles.update(_draw_panel(operation, found, axes, colours))
    for axes in panels[len(operations) :]:
        axes.set_axis_off()
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    machine = report.machine
    figure.suptitle(
        f"{report.ranks} ranks on {machine.cpu}, {machine.cores} cores, torch {machine.torch}",
        fontsize="small",
    )
    return figure


def save(report: CollectivesReport, path: Path) -> None:
    """Draw to a file whose ending says the format."""
    draw(report).savefig(path, dpi=150)


def _draw_panel(operation: str, results: list[Result], axes: Axes, colours: dict[str, str]) -> dict[str, Any]:
    """Medians with quartiles; returns what the legend shows, by title."""
    handles: dict[str, Any] = {}
    sizes = sorted({result.case.nbytes for result in results})
    for name, colour in colours.items():
        points = sorted(
            (result.case.nbytes, result.microseconds(name)) for result in results if name in result.rounds[0]
        )
        if not points:
            continue
        medians = [spread.median for _, spread in points]
        below = [spread.median - spread.low for _, spread in points]
        above = [spread.high - spread.median for _, spread in points]
        # Sizes lie evenly: a barrier has none, and four sizes are seen better so than on a scale.
        places = [sizes.index(nbytes) + 0.04 * len(handles) for nbytes, _ in points]
        title = CONTENDERS[name].title
        handles[title] = axes.errorbar(
            places, medians, yerr=[below, above], capsize=3, marker="o", color=colour, label=title
        )
    axes.set_yscale("log")
    axes.set_xticks(range(len(sizes)), [show_size(nbytes) if nbytes else "" for nbytes in sizes])
    axes.set_title(operation, fontsize="medium")
    axes.set_ylabel("microseconds a call")
    axes.grid(visible=True, axis="y", alpha=0.3)
    return handles
