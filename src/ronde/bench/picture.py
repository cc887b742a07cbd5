"""A report as bars: medians, with the quartiles as whiskers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from ronde.bench.peers import PEERS
from ronde.bench.report import Report
from ronde.bench.spread import Spread
from ronde.bench.table import STARTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Bar", "Panel", "draw", "panels", "save"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One bar: of a workload (its place), of a series (its colour)."""

    workload: str
    series: str
    spread: Spread


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Bars that share an axis; `level` is where neither side is ahead."""

    axis: str
    level: float
    bars: tuple[Bar, ...]


def panels(report: Report) -> tuple[Panel, ...]:
    """What is to be seen of a report; a panel for each unit."""
    if report.kind == "dp":
        bars = tuple(
            Bar(workload=result.workload, series=PEERS[peer].title, spread=result.against(peer).ratio)
            for result in report.results
            for peer in result.peers
        )
        return (Panel(axis="ronde's samples/s over the peer's", level=1.0, bars=bars),)
    compared = {result.workload: result.against(result.peers[0]) for result in report.results}
    starts = {workload: compared.pop(workload) for workload in STARTS if workload in compared}
    steps = tuple(
        Bar(workload=workload, series="step", spread=comparison.added_microseconds)
        for workload, comparison in compared.items()
    )
    found = [Panel(axis="microseconds a step, over plain python", level=0.0, bars=steps)] if steps else []
    for workload, comparison in starts.items():
        bar = Bar(workload=workload, series="whole process", spread=comparison.added_wall_seconds)
        found.append(Panel(axis=f"seconds, over {STARTS[workload]}", level=0.0, bars=(bar,)))
    return tuple(found)


def draw(report: Report) -> Figure:
    """A figure of all panels, side by side."""
    from matplotlib.figure import Figure

    shown = panels(report)
    places = [len({bar.workload for bar in panel.bars}) for panel in shown]
    figure = Figure(figsize=(2.0 + 1.4 * sum(places), 4.5), layout="constrained")
    axes = figure.subplots(1, len(shown), squeeze=False, width_ratios=places)[0]
    for panel, each in zip(shown, axes, strict=True):
        _draw_panel(panel, each)
    machine = report.machine
    figure.suptitle(
        f"{report.ranks} rank{'s' if report.ranks > 1 else ''} on {machine.cpu}, {machine.cores} cores, "
        f"torch {machine.torch}",
        fontsize="small",
    )
    return figure


def save(report: Report, path: Path) -> None:
    """Draw to a file whose ending says the format."""
    draw(report).savefig(path, dpi=150)


def _draw_panel(panel: Panel, axes: Axes) -> None:
    workloads = list(dict.fromkeys(bar.workload for bar in panel.bars))
    series = list(dict.fromkeys(bar.series for bar in panel.bars))
    width = 0.8 / len(series)
    for place, name in enumerate(series):
        bars = [bar for bar in panel.bars if bar.series == name]
        middle = (place - (len(series) - 1) / 2) * width
        medians = [bar.spread.median for bar in bars]
        below = [bar.spread.median - bar.spread.low for bar in bars]
        above = [bar.spread.high - bar.spread.median for bar in bars]
        drawn = axes.bar(
            [workloads.index(bar.workload) + middle for bar in bars],
            medians,
            width * 0.9,
            yerr=[below, above],
            capsize=3,
            label=name,
        )
        axes.bar_label(drawn, fmt="%.3g", padding=3, fontsize="x-small")
    axes.axhline(panel.level, color="black", linewidth=0.8)
    axes.set_xticks(range(len(workloads)), workloads, rotation=20, ha="right", fontsize="small")
    axes.set_ylabel(panel.axis)
    axes.margins(y=0.15)
    if len(series) > 1:
        axes.legend(fontsize="small")
