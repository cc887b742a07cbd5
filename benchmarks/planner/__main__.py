"""Judge the cost model of `ronde plan search` on public tables: `python -m benchmarks.planner`.

It prints mean errors on rows to which no constant was fitted, beside a constant share of the peak and the
data sheet. The exit code is 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from benchmarks.planner.figures import figures
from benchmarks.planner.report import PlannerFigure, PlannerReport, table
from ronde.bench.machine import Machine

__all__ = ["main"]


def main() -> int:
    """Print the figures, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the report to this file")
    asked = parser.parse_args()
    machine = Machine.here()
    results: list[PlannerFigure] = []
    for figure in figures():
        results.append(PlannerFigure(**dataclasses.asdict(figure)))
        print(f"{figure.name}: done", file=sys.stderr, flush=True)
    report = PlannerReport(machine=machine, results=tuple(results))
    if asked.json is not None:
        asked.json.write_text(report.to_json())
    print(table(report))
    return 0 if all(each.reached for each in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
