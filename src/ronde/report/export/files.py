"""A run as a table of comma-separated values, and as JSON."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

from ronde.report.document import encoded
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
    target.write_bytes(encoded(told) + b"\n")
