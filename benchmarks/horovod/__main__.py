"""Measure operations of Horovod's interface: `python -m benchmarks.horovod`.

Ronde's own collectives and Gloo's are timed in turn in the same processes, and each result is checked.
Steps of scripts are timed by `ronde bench dp --against ddp,horovod`.
"""

from __future__ import annotations

import argparse
import os

from benchmarks.horovod.measure import measure
from benchmarks.report_options import add_options, show

__all__ = ["main"]


def main() -> int:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.horovod", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="ranks of one thread each")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each measurement")
    add_options(parser)
    asked = parser.parse_args()
    show(measure(ranks=asked.ranks, rounds=asked.rounds, environment=os.environ), asked)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
