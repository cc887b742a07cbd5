"""Options of all programs that print a report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ronde.bench.picture import save
from ronde.bench.report import Report
from ronde.bench.table import table

__all__ = ["add_options", "say", "show"]


def say(line: str) -> None:
    """Print a line on the progress."""
    print(line, file=sys.stderr, flush=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add `--json` and `--plot`."""
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every sample to this file")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw the report: a .png, .svg or .pdf")


def show(report: Report, asked: argparse.Namespace) -> None:
    """Print the table of a report, and write the files that are asked for."""
    if asked.json is not None:
        asked.json.write_text(report.to_json())
    if asked.plot is not None:
        save(report, asked.plot)
    print(table(report))
