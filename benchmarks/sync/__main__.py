"""Measure ways of synchronising, against hand-written DDP: `python -m benchmarks.sync`.

Hosts of a slow network are network namespaces of this machine, joined by links of the given rate; that needs
root.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.report_options import add_options, say, show
from benchmarks.sync.contender import CONTENDERS
from benchmarks.sync.measure import PLACES, measure, training_of
from ronde.errors import UsageError
from ronde.testing.hosts import HostsUnavailable

__all__ = ["main"]


def main() -> int:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sync", description=__doc__)
    parser.add_argument("--ways", default=",".join(CONTENDERS), help="contenders, separated by commas")
    parser.add_argument("--places", default="100mbit,1gbit,host", help=f"of {', '.join(PLACES)}")
    parser.add_argument("--ranks", type=int, default=2, help="one on each host")
    parser.add_argument("--steps", type=int, default=16, help="timed steps of the slowest runs")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each contender")
    parser.add_argument("--batch-size", type=int, default=64, help="rows of all ranks together")
    parser.add_argument("--data", type=Path, help="folder of Fashion-MNIST, for --target")
    parser.add_argument("--target", type=float, help="accuracy to be reached, from 0 to 1")
    parser.add_argument("--epochs", type=int, help="epochs of --target; 3 by default")
    parser.add_argument("--seeds", type=int, help="runs of --target, from seed 0 on; 1 by default")
    add_options(parser)
    asked = parser.parse_args()
    try:
        report = measure(
            names=asked.ways.split(","),
            places=asked.places.split(","),
            ranks=asked.ranks,
            steps=asked.steps,
            rounds=asked.rounds,
            batch_size=asked.batch_size,
            training=training_of(
                data=asked.data, target=asked.target, epochs=asked.epochs, seeds=asked.seeds
            ),
            say=say,
        )
    except HostsUnavailable as reason:
        parser.error(f"{reason}; use --places host, which needs no network")
    except UsageError as error:
        parser.error(str(error))
    show(report, asked)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
