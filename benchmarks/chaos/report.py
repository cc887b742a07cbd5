"""Report of the cases, as a file and as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from benchmarks.chaos.running import Found
from ronde.bench.json_report import written
from ronde.bench.machine import Machine

__all__ = ["KIND", "ChaosReport", "table"]

KIND = "chaos"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ChaosReport:
    """Results of one invocation."""

    machine: Machine
    results: tuple[Found, ...]

    def to_json(self) -> str:
        return written(KIND, self)

    @property
    def is_right(self) -> bool:
        """The figures that are promised: nearly all right, nothing hung, nothing left."""
        run = [each for each in self.results if not each.skipped]
        right = sum(each.right for each in run)
        return right >= 0.95 * len(run) and not any(each.hung or each.orphans for each in run)


def table(report: ChaosReport) -> str:
    """Markdown: a row for each case, and the sums."""
    rows = [
        "| fault | explanation | rank | right | noticed after |",
        "| --- | --- | --- | --- | --- |",
        *(_row(each) for each in report.results),
    ]
    return "\n".join([*rows, "", *_sums(report.results)])


def _row(found: Found) -> str:
    if found.skipped:
        return f"| {found.name} | {found.skipped} | | | |"
    right = "yes" if found.right else f"no: {found.expected}"
    after = "" if found.after is None else f"{found.after:.1f} s"
    rank = "" if found.rank is None else str(found.rank)
    return f"| {found.name} | {found.cause or 'none'} | {rank} | {right} | {after} |"


def _sums(results: Sequence[Found]) -> list[str]:
    run = [each for each in results if not each.skipped]
    right = sum(each.right for each in run)
    lines = [f"{right} of {len(run)} right ({right / max(1, len(run)):.0%})"]
    for outcome, what in (("fails", "a failure is noticed"), ("stalls", "a stall is explained")):
        times = [each.after for each in run if each.outcome == outcome and each.after is not None]
        if times:
            lines.append(f"{what} after {max(times):.1f} s at most")
    lines.append(f"{sum(each.hung for each in run)} hung, {sum(each.orphans for each in run)} processes left")
    return lines
