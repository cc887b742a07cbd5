"""Judge the cost model of `ronde plan search` on public tables: `python -m benchmarks.planner`.

It prints mean errors on rows to which no constant was fitted, beside a constant share of the peak and the
data sheet. The exit code is 1 where a target is missed.
"""

from __future__ import annotations

import argparse

from benchmarks.planner.figure import Figure
from benchmarks.planner.figures import figures
from benchmarks.report_options import add_options, say, show
from ronde.bench.machine import Machine
from ronde.bench.report import Quantity, Report, Result

__all__ = ["main"]

_NUMBERS = ("value", "worst", "constant", "sheet", "rows", "fitted")
_TITLES = {"value": "here", "constant": "constant share", "sheet": "data sheet"}


def main() -> int:
    """Print the figures, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__)
    add_options(parser)
    asked = parser.parse_args()
    machine = Machine.here()
    found: list[Figure] = []
    for figure in figures():
        found.append(figure)
        say(f"{figure.name}: done")
    report = Report(
        kind="planner",
        machine=machine,
        settings={},
        quantities={_TITLES.get(name, name): Quantity() for name in _NUMBERS},
        results=tuple(map(row_of, found)),
        notes=("mean errors on rows to which no constant was fitted",),
    )
    show(report, asked)
    return 0 if all(each.reached for each in found) else 1


def row_of(figure: Figure) -> Result:
    """Return the row of a figure; its target is a label."""
    target = f"{'>=' if figure.at_least else '<='} {figure.target:g} {figure.unit}".rstrip()
    numbers = {_TITLES.get(name, name): getattr(figure, name) for name in _NUMBERS}
    return Result(
        labels={"figure": figure.name, "target": target, "reached": "yes" if figure.reached else "missed"},
        samples={name: (float(value),) for name, value in numbers.items() if value is not None},
    )


if __name__ == "__main__":
    raise SystemExit(main())
