"""Report of the figures of the cost model, as a table and as JSON."""

from __future__ import annotations

import dataclasses

from ronde.bench.columns import columns
from ronde.bench.json_report import written
from ronde.bench.machine import Machine

__all__ = ["KIND", "PlannerFigure", "PlannerReport", "table"]

KIND = "planner"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlannerFigure:
    """One figure: `value` is ours, `constant` by a constant share of the peak, `sheet` by the data sheet."""

    name: str
    unit: str
    target: float
    value: float
    rows: int
    fitted: int
    at_least: bool
    constant: float | None
    sheet: float | None
    worst: float | None

    @property
    def reached(self) -> bool:
        return self.value >= self.target if self.at_least else self.value <= self.target


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlannerReport:
    """Figures of one invocation."""

    machine: Machine
    results: tuple[PlannerFigure, ...]

    def to_json(self) -> str:
        return written(KIND, self)


def table(report: PlannerReport) -> str:
    """Every figure beside its target and two usual models."""
    machine = report.machine
    heading = f"{machine.cpu}, load {machine.load} before; mean errors on rows that no constant was fitted to"
    rows = [
        ("figure", "target", "here", "", "worst", "constant share", "data sheet", "rows", "fitted"),
        *(
            (
                each.name,
                f"{'>=' if each.at_least else '<='} {_shown(each.target, each.unit)}",
                _shown(each.value, each.unit),
                "" if each.reached else "missed",
                _shown(each.worst, each.unit),
                _shown(each.constant, each.unit),
                _shown(each.sheet, each.unit),
                f"{each.rows:,}",
                f"{each.fitted:,}",
            )
            for each in report.results
        ),
    ]
    return f"{heading}\n\n{columns(rows)}"


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.1f} %" if unit == "%" else f"{value:.2f} {unit}".rstrip()
