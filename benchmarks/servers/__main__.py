"""Measure a parameter server and a worker on this host: `python -m benchmarks.servers`.

Rows are looked up and their gradients pushed, with ids that come equally often, and as clicks do (Zipf,
1.05), beside a gather of rows of a dense array and a copy of as many bytes. Then dense values are pushed and
pulled by `ronde.KVStore`, through shared memory and sealed over TCP, and in turn by MXNet's where it is given
(pip install mxnet==1.9.1 "numpy<1.24").
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.report_options import add_options, say, show
from benchmarks.servers.measure import measure

__all__ = ["main"]


def main() -> int:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.servers", description=__doc__)
    parser.add_argument("--ids", type=int, default=10_000_000, help="rows of the table; 0 leaves rows out")
    parser.add_argument("--dim", type=int, default=16, help="floats of a row")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each measurement")
    parser.add_argument("--workers", type=int, default=1, help="workers of dense values")
    parser.add_argument("--mxnet", metavar="PYTHON", help="an interpreter with mxnet 1.9.1")
    parser.add_argument(
        "--before", metavar="SRC", type=Path, help="the src of another checkout, whose TCP is timed in turn"
    )
    add_options(parser)
    asked = parser.parse_args()
    report = measure(
        ids=asked.ids,
        dim=asked.dim,
        rounds=asked.rounds,
        workers=asked.workers,
        mxnet=asked.mxnet,
        say=say,
        before=asked.before,
    )
    show(report, asked)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
