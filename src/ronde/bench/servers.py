"""`ronde bench servers`: what a parameter server and a worker of one host exchange, beside memory itself.

Each round times all ways of a row behind each other, so what is compared had the same machine. A row of the
report is a `Figures`; whoever measures something else adds another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ronde.bench.columns import columns
from ronde.bench.json_report import written
from ronde.bench.machine import Machine
from ronde.bench.spread import Spread
from ronde.bench.tables import BATCH, SPREADS, names_of, picks, rate
from ronde.launch.server_config import SERVER_KEY, ServerConfig, local_endpoint

if TYPE_CHECKING:  # the command line imports no numpy
    from ronde.server.transport.client import Client

__all__ = ["KIND", "Figures", "ServersReport", "measure", "table"]

KIND = "servers"
_BATCHES_OF_A_ROUND = 8
_LEARNING_RATE = 0.01
_FILLED_AT_ONCE = 1 << 19


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """One thing that was measured, in several ways.

    Attributes:
        what: says it.
        unit: of all figures; of rates more is better, of times less.
        ways: by name, ronde's first: one figure for each round.
    """

    what: str
    unit: str
    ways: Mapping[str, tuple[float, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServersReport:
    """One invocation of `ronde bench servers`."""

    machine: Machine
    rounds: int
    results: tuple[Figures, ...]

    def to_json(self) -> str:
        return written(KIND, self)


def measure(*, ids: int, dim: int, rounds: int, progress: Callable[[Figures], None]) -> ServersReport:
    """Fill a table of a server with so many ids, and time look-ups and pushes of one worker.

    Args:
        ids: rows of the table.
        dim: floats of a row.
        rounds: of each measurement.
        progress: hears of each.

    Raises:
        UsageError: a package that servers need is not installed.
    """
    machine = Machine.here()
    results: list[Figures] = []
    for spread, exponent in SPREADS.items():
        with one_server() as client:
            results.append(_rows(client, ids, dim, spread, exponent, rounds))
        progress(results[-1])
    return ServersReport(machine=machine, rounds=rounds, results=tuple(results))


@contextlib.contextmanager
def one_server() -> Iterator[Client]:
    """A server in a process of its own, on this host, with this process as its one worker."""
    from ronde.server.transport.client import Client

    name, token = os.urandom(8).hex(), os.urandom(16)
    config = ServerConfig(index=0, servers=1, endpoint=local_endpoint(name, 0), token=token.hex(), workers=1)
    environment = {**os.environ, SERVER_KEY: config.to_json()}
    command = [sys.executable, "-m", "ronde.server.process"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as server:
        try:
            client = Client([config.endpoint], token, timeout=120)
            try:
                yield client
            finally:
                client.close()
        finally:
            server.terminate()


class _Alone:
    """A group of one rank."""

    rank, world_size = 0, 1


def _rows(client: Client, ids: int, dim: int, spread: str, exponent: float, rounds: int) -> Figures:
    """Million rows a second that are looked up, and their gradients pushed."""
    import numpy as np

    from ronde.server.served_exchange import Served
    from ronde.server.table.config import TableConfig
    from ronde.server.table.optimizers import RowwiseAdagrad
    from ronde.server.table.table import Table

    rng = np.random.default_rng(0)
    names = names_of(rng, ids)
    served = Served(client, _Alone())  # pyright: ignore[reportArgumentType]
    own = Table(TableConfig(dim=dim, optimizer=RowwiseAdagrad(lr=_LEARNING_RATE)))
    for begin in range(0, len(names), _FILLED_AT_ONCE):
        some = names[begin : begin + _FILLED_AT_ONCE]
        served.update(own, some, np.zeros((len(some), dim), np.float32), _LEARNING_RATE)
        served.settle()
    dense = np.ones((len(names), dim), np.float32)
    target = np.empty((min(BATCH, len(names)), dim), np.float32)
    gradients = rng.standard_normal((BATCH, dim)).astype(np.float32)
    pick = picks(rng, len(names), exponent)

    def step(some: np.ndarray[Any, Any]) -> None:
        served.look_up(own, some)
        served.update(own, some, gradients, _LEARNING_RATE)

    def waits(some: np.ndarray[Any, Any]) -> None:
        step(some)
        served.settle()

    def copy(place: int) -> None:
        first = min(place, len(dense) - len(target))
        np.copyto(target, dense[first : first + len(target)])

    ways = {
        "pull and push": (step, True),
        "each push waited for": (waits, True),
        "pull": (lambda some: served.look_up(own, some), True),
        "gather": (lambda places: dense[places], False),
        "copy": (lambda places: copy(int(places[0])), False),
    }
    timed: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):  # the first is the warm-up, in which loops are compiled
        chosen = [pick() for _ in range(_BATCHES_OF_A_ROUND)]
        asked = [names[each] for each in chosen]
        for name, (work, by_id) in ways.items():
            found = rate(work, asked if by_id else chosen, served.settle)
            if number:
                timed[name].append(found)
    figures = {name: tuple(values) for name, values in timed.items()}
    what = f"{len(names) / 1e6:.3g} M rows x {dim}, {spread}"
    return Figures(what=what, unit="M rows/s", ways=figures)


def table(report: ServersReport) -> str:
    """What was measured, under a line that says on what."""
    machine = report.machine
    heading = (
        f"a server and a worker on {machine.cpu}, load {machine.load} before, {report.rounds} rounds, "
        f"{BATCH:,} ids at a time"
    )
    rows = [("what", "way", "median", "quartiles", "unit")]
    for each in report.results:
        for way, figures in each.ways.items():
            found = Spread.of(figures)
            rows.append(
                (each.what, way, f"{found.median:.2f}", f"{found.low:.2f} to {found.high:.2f}", each.unit)
            )
    return f"{heading}\n\n{columns(rows)}"
