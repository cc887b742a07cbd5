"""Ways of synchronising as bars, a panel for each place: steps a second, and seconds to the accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ronde.bench.sync.contender import BASE
from ronde.bench.sync.report import SyncReport, Way

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "save"]

_LEAST_MEGABYTES = 0.001


def draw(report: SyncReport) -> Figure:
    """Panels of steps a second on a logarithmic axis, each bar with the megabytes of a step.

    Where runs have reached an accuracy, panels of the seconds that takes stand below.
    """
    from matplotlib.figure import Figure

    places = list(dict.fromkeys(each.place for each in report.results))
    names = list(dict.fromkeys(each.name for each in report.results))
    rows = 1 + any(each.steps_to is not None for each in report.results)
    size = 3 + 3.6 * len(places), rows * (1.2 + 0.28 * len(names))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, len(places), squeeze=False, sharey=True)
    for column, place in enumerate(places):
        ways = {each.name: each for each in report.results if each.place == place}
        _draw_rates(panels[0][column], place, ways, names)
        if rows > 1:
            _draw_seconds(panels[1][column], report.target or 0.0, ways, names)
    panels[0][0].invert_yaxis()
    machine = report.machine
    figure.suptitle(
        f"{report.model}, global batch {report.batch_size}, {machine.cores} cores of "
        f"{machine.cpu}, torch {machine.torch}",
        fontsize="small",
    )
    return figure


def save(report: SyncReport, path: Path) -> None:
    """Draw to a file whose ending says the format."""
    draw(report).savefig(path, dpi=150)


def _draw_rates(axes: Axes, place: str, ways: dict[str, Way], names: list[str]) -> None:
    labels = {name: f"{way.rate:.3g}{_megabytes(way.megabytes)}" for name, way in ways.items()}
    _draw_bars(axes, {name: way.rate for name, way in ways.items()}, labels, names)
    axes.set_title(place, fontsize="small")
    axes.set_xlabel("steps/s, and MB that a host sends in a step", fontsize="small")


def _megabytes(sent: float) -> str:
    """Ranks of one host share memory, and send next to nothing."""
    return f", {sent:.2g} MB" if sent > _LEAST_MEGABYTES else ""


def _draw_seconds(axes: Axes, target: float, ways: dict[str, Way], names: list[str]) -> None:
    seconds = {name: way.seconds_to for name, way in ways.items() if way.seconds_to is not None}
    _draw_bars(axes, seconds, {name: f"{each:.3g} s" for name, each in seconds.items()}, names)
    axes.set_xlabel(f"seconds to an accuracy of {target:.1%}", fontsize="small")


def _draw_bars(axes: Axes, lengths: dict[str, float], labels: dict[str, str], names: list[str]) -> None:
    """A bar for each name that has a length; the base's goes on as a line."""
    there = [name for name in names if name in lengths]
    colours = ["tab:gray" if name == BASE else "tab:blue" for name in there]
    bars = axes.barh([names.index(name) for name in there], [lengths[name] for name in there], color=colours)
    axes.bar_label(bars, [labels[name] for name in there], padding=3, fontsize="x-small")
    if BASE in lengths:
        axes.axvline(lengths[BASE], color="tab:gray", linewidth=0.8, linestyle="dashed")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.margins(x=0.3)
    axes.set_yticks(range(len(names)), names, fontsize="small")
