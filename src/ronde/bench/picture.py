"""Picture of a report: bars of medians and quartiles, a panel for each subject."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ronde.bench.report import Report, Result
from ronde.bench.spread import Spread
from ronde.bench.table import shown
from ronde.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "save"]

_COLUMNS = 4
_LOGARITHMIC = 100.0  # above this quotient of the longest and the shortest bar


def draw(report: Report) -> Figure:
    """Return the figure.

    Raises:
        UsageError: none of the report's quantities is one to be drawn.
    """
    from matplotlib.figure import Figure

    subjects: dict[tuple[str, str], list[tuple[str, Spread]]] = {}
    for name, quantity in report.quantities.items():
        for result in report.results if quantity.drawn else ():
            if result.samples.get(name):
                subject, bar = _names(result)
                subjects.setdefault((subject, name), []).append((bar, Spread.of(result.samples[name])))
    if not subjects:
        raise UsageError(f"a report of {report.kind} has nothing to draw; leave out --plot [R850]")
    across = min(_COLUMNS, len(subjects))
    down = -(-len(subjects) // across)
    most = max(len(bars) for bars in subjects.values())
    figure = Figure(figsize=(1 + 3.6 * across, 0.8 + down * (0.9 + 0.3 * most)), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for axes in panels[len(subjects) :]:
        axes.set_visible(False)
    for axes, ((subject, name), bars) in zip(panels, subjects.items(), strict=False):
        _draw_panel(axes, bars, report.quantities[name].unit)
        axes.set_title(subject, fontsize="small")
        unit = "MiB" if report.quantities[name].unit == "bytes" else report.quantities[name].unit
        axes.set_xlabel(f"{name} {unit}".strip(), fontsize="small")
    figure.suptitle(f"{report.kind} on {report.machine.line}", fontsize="small")
    return figure


def save(report: Report, path: Path) -> None:
    """Draw to a file; its ending says the format."""
    draw(report).savefig(path, dpi=150)


def _names(result: Result) -> tuple[str, str]:
    """Return the title of a result's panel, and the name of its bar."""
    first, *others = result.labels.values()
    return (first, "") if not others else (", ".join((first, *others[:-1])), others[-1])


def _draw_panel(axes: Axes, bars: list[tuple[str, Spread]], unit: str) -> None:
    scale = 2.0**20 if unit == "bytes" else 1.0
    spreads = [spread for _, spread in bars]
    medians = [each.median / scale for each in spreads]
    errors = [
        [(each.median - each.low) / scale for each in spreads],
        [(each.high - each.median) / scale for each in spreads],
    ]
    drawn = axes.barh(range(len(bars)), medians, 0.8, xerr=errors, capsize=2)
    axes.bar_label(drawn, [shown(each.median, unit) for each in spreads], padding=3, fontsize="x-small")
    axes.set_yticks(range(len(bars)), [name for name, _ in bars], fontsize="small")
    axes.invert_yaxis()
    if min(medians) > 0 and max(medians) / min(medians) > _LOGARITHMIC:
        axes.set_xscale("log")
    if unit == "x":
        axes.axvline(1.0, color="black", linewidth=0.8)
    axes.margins(x=0.3)
