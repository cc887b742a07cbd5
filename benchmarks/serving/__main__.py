"""Measure a replica while a model is trained, and afterwards: `python -m benchmarks.serving`.

Requests come at a fixed rate from another process, by HTTP, then by the binary protocol; their time counts
from when they were due.
"""

from __future__ import annotations

import argparse
import os

from benchmarks.report_options import add_options, say, show
from benchmarks.serving.measure import measure

__all__ = ["main"]


def main() -> int:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--rate", type=float, default=1000, help="requests a second, of 100 ids each")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table, of 16 floats each")
    parser.add_argument("--seconds", type=float, default=10, help="length of a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds beside training, and as many alone")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between versions")
    add_options(parser)
    asked = parser.parse_args()
    report = measure(
        rate=asked.rate,
        rows=asked.rows,
        seconds=asked.seconds,
        rounds=asked.rounds,
        interval=asked.interval,
        environment=os.environ,
        say=say,
    )
    show(report, asked)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
