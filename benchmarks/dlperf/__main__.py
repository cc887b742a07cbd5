"""Compare ronde with the frameworks of DLPerf on this machine: `python -m benchmarks.dlperf`.

ResNet-50 v1.5 and BERT base with inputs that are small enough for a CPU, and a BERT text classification, on
one process and on two. Frameworks that are not of torch get environments of their own from wheels, made
once.
"""

from __future__ import annotations

import argparse
import os

from benchmarks.dlperf.cases import CASES, USUAL
from benchmarks.dlperf.environments import cache_folder
from benchmarks.dlperf.frameworks import FRAMEWORKS, OURS
from benchmarks.dlperf.measure import measure
from benchmarks.report_options import add_options, say, show

__all__ = ["main"]


def main() -> int:
    """Measure, and print the report."""
    cache = cache_folder(os.environ)
    peers = [name for name in FRAMEWORKS if name != OURS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dlperf",
        description=__doc__,
        epilog=f"Environments are in {cache}; XDG_CACHE_HOME moves them.",
    )
    parser.add_argument("--workloads", default=",".join(USUAL), help=f"of {', '.join(CASES)}")
    parser.add_argument("--against", default=",".join(peers), help=f"of {', '.join(peers)}")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each framework; medians count")
    add_options(parser)
    asked = parser.parse_args()
    say(f"environments are in {cache}")
    names = [each.split(",") for each in (asked.workloads, asked.against)]
    show(measure(*names, rounds=asked.rounds, cache=cache, say=say), asked)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
