"""Table of a report: rows of results, columns of labels and quantities."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from ronde.bench.report import Quantity, Report, Result
from ronde.bench.spread import Spread
from ronde.trace.memory import show_bytes

__all__ = ["columns", "shown", "table"]

_WIDTH = 100


def table(report: Report) -> str:
    """Return heading, table and notes as lines for a terminal."""
    labels = list(dict.fromkeys(name for each in report.results for name in each.labels))
    there = {name for each in report.results for name in each.samples}
    quantities = {name: each for name, each in report.quantities.items() if name in there}
    heads = [_head(name, each) for name, each in quantities.items()]
    rows = [(*labels, *heads), *(_row(each, labels, quantities) for each in report.results)]
    settings = "".join(f", {name} {value}" for name, value in report.settings.items())
    heading = textwrap.fill(f"{report.kind} on {report.machine.line}{settings}", _WIDTH)
    notes = [textwrap.fill(line, _WIDTH, subsequent_indent="  ") for line in report.notes]
    return "\n\n".join(filter(None, (heading, columns(rows, len(labels)), "\n".join(notes))))


def columns(rows: Sequence[tuple[str, ...]], left: int = 1) -> str:
    """Return rows of words in columns, the first `left` of them to the left."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def shown(value: float, unit: str) -> str:
    """Return a number with four digits.

    >>> shown(0.98765, ""), shown(12345.6, "ms"), shown(4096, "bytes")
    ('0.9877', '12346', '4.00 KiB')
    """
    if unit == "bytes":
        return show_bytes(round(value))
    if value == round(value) or not math.isfinite(value):
        return f"{value:.0f}"
    digits = 3 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(max(digits, 0), 6)}f}"


def _head(name: str, quantity: Quantity) -> str:
    return f"{name} {quantity.unit}" if quantity.unit not in ("", "x", "bytes") else name


def _row(result: Result, labels: Sequence[str], quantities: dict[str, Quantity]) -> tuple[str, ...]:
    cells = (_cell(result.samples.get(name, ()), each) for name, each in quantities.items())
    return (*(result.labels.get(name, "") for name in labels), *cells)


def _cell(samples: Sequence[float], quantity: Quantity) -> str:
    if not samples:
        return ""
    found = Spread.of(samples)
    median = shown(found.median, quantity.unit)
    if not quantity.spread or len(samples) == 1:
        return median
    return f"{median} ({shown(found.low, quantity.unit)} to {shown(found.high, quantity.unit)})"
