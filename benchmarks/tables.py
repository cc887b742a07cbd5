"""Look-ups and updates of an embedding table on one core: `python -m benchmarks.tables`.

The ceiling of a look-up is a gather: rows of a dense array by their number, without a search. Each round
times all of them in a row, on new ids, so that all have the same machine and equally cold caches.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.report_options import add_options, say, show
from benchmarks.servers.ids import BATCH, SPREADS, distinct_ids, draws, rate
from ronde.bench.machine import Machine
from ronde.bench.report import Quantity, Report, Result
from ronde.bench.rounds import ratios
from ronde.bench.spread import Spread
from ronde.server.table.optimizers import RowwiseAdagrad
from ronde.server.table.table import Table, TableConfig

__all__ = ["main", "measure"]

QUANTITIES = {
    "look-up": Quantity(unit="M rows/s", spread=True),
    "gather": Quantity(unit="M rows/s"),
    "of the gather": Quantity(unit="x"),
    "update": Quantity(unit="M rows/s", spread=True),
    "memory": Quantity(unit="x"),
}
NOTES = ("memory: bytes of the table over those of its ids and rows (embedding and optimizer state)",)
_BATCHES_OF_A_ROUND = 8
_LEARNING_RATE = 0.01


def measure(*, ids: int, dims: Sequence[int], rounds: int) -> Report:
    """Fill tables with so many ids, and time look-ups and updates.

    Args:
        ids: rows of each table.
        dims: floats of a row, one table each.
        rounds: repetitions of each measurement.
    """
    machine = Machine.here()
    copies = [_copy() for _ in range(rounds)]
    results: list[Result] = []
    for dim in dims:
        for spread, exponent in SPREADS.items():
            results.append(_measure(ids, dim, spread, exponent, rounds))
            say(f"{ids:,} ids of {dim} floats, {spread}: done")
    settings = {"rounds": str(rounds), "ids at a time": f"{BATCH:,}"}
    return Report(
        kind="tables",
        machine=machine,
        settings={**settings, "copy by one core": f"{Spread.of(copies).median:.1f} GB/s"},
        quantities=QUANTITIES,
        results=tuple(results),
        notes=NOTES,
    )


def _measure(ids: int, dim: int, spread: str, exponent: float, rounds: int) -> Result:
    rng = np.random.default_rng(0)
    names = distinct_ids(rng, ids)
    own = Table(TableConfig(dim=dim, optimizer=RowwiseAdagrad(lr=_LEARNING_RATE)))
    for begin in range(0, len(names), 1 << 20):
        some = names[begin : begin + (1 << 20)]
        own.update(some, np.zeros((len(some), dim), np.float32))
    dense = np.zeros((len(names), dim), np.float32)
    dense += 1  # touches every page
    draw = draws(rng, len(names), exponent)
    gradients = rng.standard_normal((BATCH, dim)).astype(np.float32)
    timed: dict[str, list[float]] = {"look-up": [], "gather": [], "update": []}
    for number in range(rounds + 1):  # the first is the warm-up, in which loops are compiled
        chosen = [draw() for _ in range(_BATCHES_OF_A_ROUND)]
        asked = [names[each] for each in chosen]
        found = {
            "look-up": rate(own.look_up, asked),
            "gather": rate(lambda places: dense[places], chosen),
            "update": rate(lambda each: own.update(each, gradients), asked),
        }
        if number:
            for name, value in found.items():
                timed[name].append(value)
    rows = len(own) * (8 + 4 * (dim + own.config.optimizer.state(dim)))
    samples = {name: tuple(values) for name, values in timed.items()}
    samples["of the gather"] = ratios(samples["look-up"], samples["gather"])
    samples["memory"] = (own.nbytes / rows,)
    return Result(labels={"table": f"{len(own) / 1e6:.3g} M x {dim}", "ids": spread}, samples=samples)


def _copy() -> float:
    """Return gigabytes a second, read and written, of a copy beyond all caches."""
    source = np.ones(1 << 27, np.uint8)
    target = np.empty_like(source)
    target[:] = 0
    begin = time.perf_counter()
    target[:] = source
    return 2 * source.nbytes / (time.perf_counter() - begin) / 1e9


def main() -> int:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--ids", type=int, default=10_000_000, help="rows of each table")
    parser.add_argument("--dims", metavar="LIST", default="16,64", help="floats of a row")
    parser.add_argument("--rounds", type=int, default=9, help="repetitions of each measurement")
    add_options(parser)
    asked = parser.parse_args()
    dims = [int(each) for each in asked.dims.split(",")]
    show(measure(ids=asked.ids, dims=dims, rounds=asked.rounds), asked)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
