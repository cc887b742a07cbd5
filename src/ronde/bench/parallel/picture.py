"""The measured timeline of a step under each mesh: a bar for each rank, waits in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ronde.bench.parallel.report import ParallelReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw", "save"]

_COLOURS = {
    "data": "tab:gray",
    "forward": "tab:blue",
    "backward": "tab:orange",
    "optimizer": "tab:green",
    "wait": "white",
}


def draw(report: ParallelReport) -> Figure:
    """A panel for each plan, one under the other, on one scale of milliseconds."""
    from matplotlib.figure import Figure

    shown = [each for each in report.results if any(rank.timeline for rank in each.ranks)]
    heights = [len(each.ranks) for each in shown] or [1]
    figure = Figure(figsize=(9, 1.2 + 0.35 * sum(heights) + 0.4 * len(heights)), layout="constrained")
    panels = figure.subplots(
        len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    for (axes,), run in zip(panels, shown, strict=False):
        for rank, figures in enumerate(run.ranks):
            for name, colour in _COLOURS.items():  # waits last: they lie in phases
                bars = [(span.begin, span.end - span.begin) for span in figures.timeline if span.name == name]
                edge = {"edgecolor": "tab:gray", "linewidth": 0.3} if name == "wait" else {}
                axes.broken_barh(bars, (rank - 0.4, 0.8), facecolors=colour, **edge)
        axes.set_yticks(range(len(run.ranks)), [f"rank {rank}" for rank in range(len(run.ranks))])
        axes.invert_yaxis()
        axes.set_title(run.name, fontsize="small", loc="left")
    panels[-1][0].set_xlabel("ms of one step")
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=colour, edgecolor="tab:gray", linewidth=0.3, label=name)
        for name, colour in _COLOURS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize="small")
    figure.suptitle(
        f"{report.workload}, {report.parameters / 1e6:.1f} million parameters, torch {report.machine.torch}",
        fontsize="small",
    )
    return figure


def save(report: ParallelReport, path: Path) -> None:
    """Draw to a file whose ending says the format."""
    draw(report).savefig(path, dpi=150)
