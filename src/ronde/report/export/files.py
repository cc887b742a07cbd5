"""A run as a table of comma-separated values, and as JSON."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from ronde.report.export.rows import COLUMNS, rows_of
from ronde.report.run import RunState

__all__ = ["write_csv", "write_json"]


def write_csv(run: RunState, target: Path) -> None:
    """Write a row for each record of each rank.

    An empty field is a loss that the script did not read.

    Raises:
        OSError: the file cannot be written.
    """
    with target.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for rank in run.ranks:
            writer.writerows(row.values() for row in rows_of(run, rank.steps))


def write_json(run: RunState, target: Path) -> None:
    """Write the run, its events, its cause of failure and all records.

    A number that is not finite becomes null.

    Raises:
        OSError: the file cannot be written.
    """
    cause = run.cause
    told = {
        "run": run.path.name,
        "life": run.life,
        "seconds": run.seconds,
        "start": dict(run.start),
        "cause": None if cause is None else dataclasses.asdict(cause),
        "events": [{**dataclasses.asdict(each), "seconds": run.seconds_of(each)} for each in run.events],
        "columns": COLUMNS,
        "ranks": [
            {
                "rank": rank.rank,
                "host": rank.steps.host,
                "life": rank.life,
                "steps": rank.steps.steps,
                "samples": rank.steps.samples,
                "rows": [list(row.values()) for row in rows_of(run, rank.steps)],
            }
            for rank in run.ranks
        ],
    }
    with target.open("w", encoding="utf-8") as stream:
        json.dump(_finite(told), stream, allow_nan=False)
        stream.write("\n")


def _finite(value: Any) -> Any:
    """Replace numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value
