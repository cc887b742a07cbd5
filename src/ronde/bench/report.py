"""What was measured, as JSON and as a table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from ronde.bench.machine import Machine
from ronde.bench.pairs import Pair, Result
from ronde.bench.sample import Sample
from ronde.bench.spread import Spread

__all__ = ["Report", "data_parallel_table", "overhead_table"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """One invocation of `ronde bench`.

    Attributes:
        kind: `dp` or `overhead`.
        ranks, threads: ranks, and threads of each (None: what torch chose).
    """

    kind: str
    machine: Machine
    ranks: int
    threads: int | None
    results: tuple[Result, ...]

    def to_json(self) -> str:
        """Every sample, and the figures made of them."""
        fields = dataclasses.asdict(self)
        for result, described in zip(self.results, fields["results"], strict=True):
            described["ratio"] = dataclasses.asdict(result.ratio)
            described["added_microseconds"] = dataclasses.asdict(result.added_microseconds)
            described["added_wall_seconds"] = dataclasses.asdict(result.added_wall_seconds)
        return json.dumps(fields, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report that `to_json` wrote; its figures are made of the samples again."""
        fields = json.loads(text)
        fields["machine"] = Machine(**fields["machine"])
        fields["results"] = tuple(_result(described) for described in fields["results"])
        return cls(**fields)


def _result(fields: dict[str, Any]) -> Result:
    pairs = tuple(
        Pair(ours=Sample(**pair["ours"]), peer=Sample(**pair["peer"]), ours_first=pair["ours_first"])
        for pair in fields["pairs"]
    )
    return Result(workload=fields["workload"], pairs=pairs)


def _heading(report: Report) -> str:
    machine, threads = report.machine, report.threads
    each = "" if threads is None else f" of {threads} thread{'s' if threads > 1 else ''}"
    return (
        f"{report.ranks} rank{'s' if report.ranks > 1 else ''}{each} on {machine.cpu}, "
        f"{machine.cores} cores, load {machine.load:.1f} before; "
        f"torch {machine.torch}, python {machine.python}"
    )


def data_parallel_table(report: Report) -> str:
    """Throughput against the DDP twin: medians, and the quartiles of the pairs' ratios."""
    rows = [("workload", "ronde samples/s", "DDP samples/s", "ratio", "quartiles", "pairs")]
    for result in report.results:
        ratio = result.ratio
        rows.append(
            (
                result.workload,
                f"{result.ours.median:.1f}",
                f"{result.peer.median:.1f}",
                f"{ratio.median:.3f}",
                f"{ratio.low:.3f} to {ratio.high:.3f}",
                str(len(result.pairs)),
            )
        )
    legend = "ratio: ronde over hand-written DDP, median of the pairs' ratios"
    return "\n\n".join([_heading(report), _columns(rows), legend])


def overhead_table(report: Report) -> str:
    """What one rank costs over plain python, per step and at the start."""
    rows = [("workload", "plain us/step", "added us/step", "quartiles", "added %")]
    start: list[str] = []
    for result in report.results:
        if result.workload == "start-up":
            added = result.added_wall_seconds
            start.append(
                f"start-up: {added.median:+.3f} s over plain python "
                f"(quartiles {_range(added, 3)} s, whole process)"
            )
            continue
        plain = Spread.of(pair.peer.step_microseconds for pair in result.pairs)
        percent = Spread.of((1 / pair.ratio - 1) * 100 for pair in result.pairs)
        added = result.added_microseconds
        rows.append(
            (
                result.workload,
                f"{plain.median:.1f}",
                f"{added.median:+.1f}",
                _range(added, 1),
                f"{percent.median:+.2f}",
            )
        )
    table = [_columns(rows)] if len(rows) > 1 else []
    return "\n\n".join([_heading(report), *table, *start])


def _range(spread: Spread, digits: int) -> str:
    return f"{spread.low:+.{digits}f} to {spread.high:+.{digits}f}"


def _columns(rows: Sequence[tuple[str, ...]]) -> str:
    """First column to the left, figures to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
