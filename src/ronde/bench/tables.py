"""`ronde bench tables`: look-ups and updates of an embedding table on one core, beside what memory allows.

The ceiling of a look-up is a gather: rows of a dense array by their number, which need not be found. Each
round times all of them behind each other, on ids that were not used before, so what is compared had the same
machine and equally cold caches.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ronde.bench.columns import columns
from ronde.bench.json_report import written
from ronde.bench.machine import Machine
from ronde.bench.spread import Spread

if TYPE_CHECKING:  # the command line imports no numpy
    import numpy as np

__all__ = ["KIND", "TableFigures", "TablesReport", "measure", "names_of", "picks", "rate", "table"]

KIND = "tables"
#: Ids of a look-up: 2,500 samples with 26 features.
BATCH = 65_536
_BATCHES_OF_A_ROUND = 8
_LEARNING_RATE = 0.01
#: Exponents of how often ids come, by rank of popularity; 0 is equally often.
SPREADS = {"uniform": 0.0, "zipf": 1.05}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TableFigures:
    """One table.

    Attributes:
        ids: rows in it.
        dim: floats of a row.
        spread: how often ids come, "uniform" or "zipf" (exponent 1.05).
        look_ups: million rows a second, by round.
        gathers: the same of rows of a dense array by number.
        updates: million rows a second of row-wise Adagrad, equal ids added before, by round.
        memory: bytes of the table, over those of its ids and rows (embedding and optimizer state).
    """

    ids: int
    dim: int
    spread: str
    look_ups: tuple[float, ...]
    gathers: tuple[float, ...]
    updates: tuple[float, ...]
    memory: float

    @property
    def of_ceiling(self) -> Spread:
        """Look-ups over gathers, round by round."""
        return Spread.of(own / most for own, most in zip(self.look_ups, self.gathers, strict=True))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TablesReport:
    """One invocation of `ronde bench tables`.

    Attributes:
        copy: gigabytes a second that one core copies (read and written), by round.
    """

    machine: Machine
    rounds: int
    copy: tuple[float, ...]
    results: tuple[TableFigures, ...]

    def to_json(self) -> str:
        return written(KIND, self)


def measure(
    *, ids: int, dims: Sequence[int], rounds: int, progress: Callable[[TableFigures], None]
) -> TablesReport:
    """Fill tables with so many ids, and time look-ups and updates.

    Args:
        ids: rows of each table.
        dims: floats of a row, one table each.
        rounds: of each measurement.
        progress: hears of each.

    Raises:
        UsageError: numba is not installed.
    """
    machine = Machine.here()
    copies = tuple(_copy() for _ in range(rounds))
    results: list[TableFigures] = []
    for dim in dims:
        for spread, exponent in SPREADS.items():
            results.append(_measure(ids, dim, spread, exponent, rounds))
            progress(results[-1])
    return TablesReport(machine=machine, rounds=rounds, copy=copies, results=tuple(results))


def _measure(ids: int, dim: int, spread: str, exponent: float, rounds: int) -> TableFigures:
    import numpy as np

    from ronde.server.table.config import TableConfig
    from ronde.server.table.optimizers import RowwiseAdagrad
    from ronde.server.table.table import Table

    rng = np.random.default_rng(0)
    names = names_of(rng, ids)
    own = Table(TableConfig(dim=dim, optimizer=RowwiseAdagrad(lr=_LEARNING_RATE)))
    for begin in range(0, len(names), 1 << 20):
        some = names[begin : begin + (1 << 20)]
        own.update(some, np.zeros((len(some), dim), np.float32))
    dense = np.zeros((len(names), dim), np.float32)
    dense += 1  # touches every page
    pick = picks(rng, len(names), exponent)
    gradients = rng.standard_normal((BATCH, dim)).astype(np.float32)
    timed: dict[str, list[float]] = {"look_ups": [], "gathers": [], "updates": []}
    for number in range(rounds + 1):  # the first is the warm-up, in which loops are compiled
        chosen = [pick() for _ in range(_BATCHES_OF_A_ROUND)]
        asked = [names[each] for each in chosen]
        found = {
            "look_ups": rate(own.look_up, asked),
            "gathers": rate(lambda places: dense[places], chosen),
            "updates": rate(lambda each: own.update(each, gradients), asked),
        }
        if number:
            for name, value in found.items():
                timed[name].append(value)
    rows = len(own) * (8 + 4 * (dim + own.config.optimizer.state(dim)))
    lists = {name: tuple(values) for name, values in timed.items()}
    return TableFigures(ids=len(own), dim=dim, spread=spread, memory=own.nbytes / rows, **lists)


def names_of(rng: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    """About so many ids, in a random order; int64."""
    import numpy as np

    names = np.unique(rng.integers(-(2**62), 2**62, count))  # the few that came twice are missing
    rng.shuffle(names)
    return names


def picks(rng: np.random.Generator, ids: int, exponent: float) -> Callable[[], np.ndarray[Any, Any]]:
    """Numbers of ids, a batch at a time; as they were shuffled, popular ones lie anywhere."""
    import numpy as np

    if not exponent:
        return lambda: rng.integers(0, ids, BATCH)
    shares = np.cumsum(np.arange(1, ids + 1, dtype=np.float64) ** -exponent)
    return lambda: np.searchsorted(shares, rng.random(BATCH) * shares[-1])


def rate(
    work: Callable[[np.ndarray[Any, Any]], object],
    batches: Sequence[np.ndarray[Any, Any]],
    settle: Callable[[], object] = lambda: None,
) -> float:
    """Million rows a second, until all work that was begun is done."""
    begin = time.perf_counter()
    for each in batches:
        work(each)
    settle()
    return sum(map(len, batches)) / (time.perf_counter() - begin) / 1e6


def _copy() -> float:
    """Gigabytes a second, read and written ones counted, of a copy that no cache holds."""
    import numpy as np

    source = np.ones(1 << 27, np.uint8)
    target = np.empty_like(source)
    target[:] = 0
    begin = time.perf_counter()
    target[:] = source
    return 2 * source.nbytes / (time.perf_counter() - begin) / 1e9


def table(report: TablesReport) -> str:
    """What was measured, under a line that says on what."""
    machine = report.machine
    heading = (
        f"one core of {machine.cpu}, load {machine.load} before, {report.rounds} rounds, {BATCH:,} ids at a "
        f"time; it copies {Spread.of(report.copy).median:.1f} GB/s; million rows a second"
    )
    rows = [("table", "look-up", "quartiles", "gather", "of it", "update", "quartiles", "memory")]
    for each in report.results:
        found, made = Spread.of(each.look_ups), Spread.of(each.updates)
        rows.append(
            (
                f"{each.ids / 1e6:.3g} M x {each.dim}, {each.spread}",
                f"{found.median:.1f}",
                f"{found.low:.1f} to {found.high:.1f}",
                f"{Spread.of(each.gathers).median:.1f}",
                f"{each.of_ceiling.median:.2f}",
                f"{made.median:.1f}",
                f"{made.low:.1f} to {made.high:.1f}",
                f"{each.memory:.2f}",
            )
        )
    return f"{heading}\n\n{columns(rows)}"
