"""Rows that a worker looks up at a server and pushes to it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.servers.ids import BATCH, SPREADS, distinct_ids, draws, rate
from benchmarks.servers.push_pull import push_and_pull
from ronde.bench.machine import Machine
from ronde.bench.report import Quantity, Report, Result
from ronde.bench.rounds import Progress
from ronde.launch.server_config import SERVER_KEY, ServerConfig, local_endpoint

if TYPE_CHECKING:  # the command line imports no numpy
    from ronde.server.transport.client import Client

__all__ = ["QUANTITIES", "measure", "rows_of"]

QUANTITIES = {
    "rate": Quantity(unit="M rows/s", spread=True, drawn=True),
    "time": Quantity(unit="ms", spread=True, drawn=True),
}
_BATCHES_OF_A_ROUND = 8
_LEARNING_RATE = 0.01
_FILLED_AT_ONCE = 1 << 19


def measure(
    *,
    ids: int,
    dim: int,
    rounds: int,
    workers: int,
    mxnet: str | None,
    say: Progress,
    before: Path | None = None,
) -> Report:
    """Time look-ups and pushes of rows, then pushes and pulls of dense values.

    Args:
        ids: rows of the table; 0 leaves rows out.
        dim: floats of a row.
        rounds: repetitions of each measurement.
        workers: the number of workers for dense values.
        mxnet: an interpreter with MXNet 1.9; None leaves MXNet out.
        before: the `src` of another checkout, beside which dense values go; None leaves it out.

    Raises:
        UsageError: a package that servers need is not installed.
        BenchError: a process failed.
    """
    machine = Machine.here()
    results: list[Result] = []
    for spread, exponent in SPREADS.items() if ids else ():
        with one_server() as client:
            what, figures = _rows(client, ids, dim, spread, exponent, rounds)
        results += rows_of(what, "rate", figures)
        say(f"{what}: done")
    for what, figures in push_and_pull(rounds, workers, mxnet, before):
        results += rows_of(what, "time", figures)
        say(f"{what}: done")
    return Report(
        kind="servers",
        machine=machine,
        settings={"rounds": str(rounds), "ids at a time": f"{BATCH:,}"},
        quantities=QUANTITIES,
        results=tuple(results),
    )


def rows_of(subject: str, quantity: str, ways: Mapping[str, Sequence[float]]) -> list[Result]:
    """Return a row for each way of doing one thing."""
    return [
        Result(labels={"subject": subject, "way": way}, samples={quantity: tuple(figures)})
        for way, figures in ways.items()
    ]


@contextlib.contextmanager
def one_server() -> Iterator[Client]:
    """Start a server on this host, with this process as its one worker."""
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


def _rows(
    client: Client, ids: int, dim: int, spread: str, exponent: float, rounds: int
) -> tuple[str, dict[str, list[float]]]:
    """Return million rows a second by way, one for each round."""
    import numpy as np

    from ronde.server.remote_tables import Served
    from ronde.server.table.optimizers import RowwiseAdagrad
    from ronde.server.table.table import Table, TableConfig

    rng = np.random.default_rng(0)
    names = distinct_ids(rng, ids)
    served = Served(client, _Alone())  # pyright: ignore[reportArgumentType]
    own = Table(TableConfig(dim=dim, optimizer=RowwiseAdagrad(lr=_LEARNING_RATE)))
    for begin in range(0, len(names), _FILLED_AT_ONCE):
        some = names[begin : begin + _FILLED_AT_ONCE]
        served.update(own, some, np.zeros((len(some), dim), np.float32), _LEARNING_RATE)
        served.settle()
    dense = np.ones((len(names), dim), np.float32)
    target = np.empty((min(BATCH, len(names)), dim), np.float32)
    gradients = rng.standard_normal((BATCH, dim)).astype(np.float32)
    draw = draws(rng, len(names), exponent)

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
        chosen = [draw() for _ in range(_BATCHES_OF_A_ROUND)]
        asked = [names[each] for each in chosen]
        for name, (work, by_id) in ways.items():
            found = rate(work, asked if by_id else chosen, served.settle)
            if number:
                timed[name].append(found)
    return f"{len(names) / 1e6:.3g} M rows x {dim}, {spread}", timed
