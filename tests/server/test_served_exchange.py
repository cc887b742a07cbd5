"""Tables on servers: what comes back is what one process would have, or had a few steps ago."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ronde import table as tables
from ronde.errors import RondeError
from ronde.server.parameter_server import ParameterServer
from ronde.server.remote_tables import Served
from ronde.server.shard import ServerShard
from ronde.server.sparse import PAGE_BYTES, SparseShard
from ronde.server.table.config import TableConfig
from ronde.server.table.delta import RowsOfVersion, all_rows, changed_rows
from ronde.server.table.table import Table
from ronde.server.transport.client import Client, ServerRefused
from ronde.server.transport.service import Service
from support.servers import serving

Array = np.ndarray[Any, Any]
DIM = 4
TOKEN = b"0123456789abcdef"
_NAMES = itertools.count()


class One:
    """A group of one rank."""

    rank, world_size = 0, 1


ONE: Any = One()


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    """Starts servers in threads of this process, and connects to them."""
    services: list[Service] = []
    threads: list[threading.Thread] = []
    clients: list[Client] = []

    def start(servers: int, transport: str = "ipc://@ronde-test-{}", page_bytes: int = PAGE_BYTES) -> Client:
        for _ in range(servers):
            server = ParameterServer(ServerShard({"sparse": SparseShard(page_bytes)}), None, workers=1)
            endpoint = transport.format(f"{os.getpid()}-{next(_NAMES)}")
            services.append(Service(endpoint, TOKEN, server))
            threads.append(threading.Thread(target=services[-1].run))
            threads[-1].start()
        clients.append(Client([each.endpoint for each in services], TOKEN, timeout=20))
        return clients[-1]

    yield start
    for service, thread in zip(services, threads, strict=True):
        service.stop()
        thread.join()
        service.close()
    for client in clients:
        client.close()


def config(**options: Any) -> TableConfig:
    optimizer = tables.Adagrad(lr=0.1, initial_accumulator_value=0.1)
    return TableConfig(dim=DIM, optimizer=optimizer, dtype="float64", **options)


def steps(count: int, seed: int = 0) -> Iterator[tuple[Array, Array]]:
    """Ids that come unequally often, and gradients of them."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        ids = (rng.random(200) ** 3 * 300).astype(np.int64) * 0x1B873593 - 2**40
        yield ids, rng.standard_normal((len(ids), DIM))


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("transport", ["ipc://@ronde-test-{}", "tcp://127.0.0.1:*"])
def test_served_rows_are_those_of_one_process(
    servers: int, transport: str, connect: Callable[..., Client]
) -> None:
    served, alone, own = Served(connect(servers, transport), ONE), Table(config()), Table(config())
    served.compile(own)
    for ids, gradients in steps(6):
        np.testing.assert_allclose(served.look_up(own, ids), alone.look_up(ids), rtol=1e-13)
        served.update(own, ids, gradients, 0.1)
        alone.update(ids, gradients)
    assert served.count(own) == len(alone)
    assert served.look_up(own, np.empty(0, np.int64)).shape == (0, DIM)
    state, expected = served.state(own), alone.state()
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-13, err_msg=name)
    again = Table(config())
    served.load(again, state)
    for name, value in served.state(again).items():
        np.testing.assert_array_equal(value, state[name])
    served.end()


@pytest.mark.parametrize("page_bytes", [1, 900, PAGE_BYTES])
def test_changes_of_served_rows_are_those_of_one_process(
    page_bytes: int, connect: Callable[..., Client]
) -> None:
    client = connect(2, page_bytes=page_bytes)
    rule = tables.EvictByAge(2, every=1)
    served, alone, own = Served(client, ONE), Table(config(evict=rule)), Table(config(evict=rule))
    served.compile(own)
    removed = 0
    for version, (ids, gradients) in enumerate(steps(6), start=1):
        served.update(own, ids, gradients, 0.1)
        alone.update(ids, gradients)
        changes, expected = served.changes(own, version, version - 1), changed_rows(alone)
        if version == 1:
            assert changes is expected is None
        else:
            assert changes is not None
            assert expected is not None
            same(changes, expected)
            removed += len(changes.removed)
        same(served.rows(own), all_rows(alone))
    assert removed
    assert served.changes(own, 7, 0) is None  # version 6 is not durable
    served.end()


def same(found: RowsOfVersion, expected: RowsOfVersion) -> None:
    order, wanted = np.argsort(found.ids), np.argsort(expected.ids)
    np.testing.assert_array_equal(found.ids[order], expected.ids[wanted])
    np.testing.assert_allclose(found.rows[order], expected.rows[wanted], rtol=1e-13)
    np.testing.assert_array_equal(np.sort(found.removed), np.sort(expected.removed))


def test_what_a_server_refuses_is_raised_by_what_is_asked_next(connect: Callable[..., Client]) -> None:
    served, own = Served(connect(2), ONE), Table(config(max_rows=3))
    ids = np.arange(100)
    served.update(own, ids, np.ones((100, DIM)), 0.1)
    with pytest.raises(ServerRefused, match="its `max_rows` is 3"):
        served.settle()


class HoldsBack(Served):
    """The last pushes have not reached the servers: as late as the staleness allows."""

    def __init__(self, client: Client, late: int) -> None:
        super().__init__(client, ONE, staleness=0)
        self._late, self._held = late, list[tuple[Any, ...]]()

    def update(self, table: Table, ids: Array, gradients: Array, lr: float) -> None:
        self._held.append((table, ids, gradients, lr))
        if len(self._held) > self._late:
            super().update(*self._held.pop(0))


@pytest.mark.parametrize("staleness", [1, 3])
def test_a_step_with_late_pushes_is_that_of_one_process_which_is_as_late(
    staleness: int, connect: Callable[..., Client]
) -> None:
    served = HoldsBack(connect(2), staleness)
    alone, own = Table(config()), Table(config())
    late: list[tuple[Array, Array]] = []
    for ids, targets in steps(12):
        found, expected = served.look_up(own, ids), alone.look_up(ids)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        served.update(own, ids, found - targets, 0.1)
        late.append((ids, expected - targets))
        if len(late) > staleness:
            alone.update(*late.pop(0))


@pytest.mark.parametrize("staleness", [1, 3])
@pytest.mark.parametrize("places", [64, 4096])
def test_no_row_lacks_more_pushes_than_the_staleness(
    staleness: int, places: int, connect: Callable[..., Client]
) -> None:
    said: list[str] = []
    served = Served(connect(2), ONE, staleness=staleness, hot_rows=places, say=said.append)
    own, alone = Table(config()), Table(config())
    versions: list[Array] = []
    names = np.unique(np.concatenate([ids for ids, _ in steps(30)]))
    older = 0
    for ids, gradients in steps(30):
        versions.append(alone.look_up(names))
        found = served.look_up(own, ids)
        possible = np.stack([each[np.searchsorted(names, ids)] for each in versions[-1 - staleness :]])
        # Of the possible versions of each row, the newest that it is.
        same: Array = np.all(np.isclose(possible, found, rtol=1e-12), axis=2)
        assert same.any(axis=0).all()
        older += int((~same[-1]).sum())
        served.update(own, ids, gradients, 0.1)
        alone.update(ids, gradients)
    assert older > 0
    served.end()
    (words,) = said
    assert "of the rows that rank 0 looked up were kept" in words
    assert not words.startswith("tables: 0%")
    for name, value in alone.state().items():
        np.testing.assert_allclose(served.state(own)[name], value, rtol=1e-12)


def test_half_rows_are_rounded_on_their_way_and_stay_finite(connect: Callable[..., Client]) -> None:
    served, own = Served(connect(2), ONE), Table(config(initial=tables.Uniform(1e6), half_rows=True))
    whole, ids = Table(config(initial=tables.Uniform(1e6))), np.arange(500)
    found, expected = served.look_up(own, ids), whole.look_up(ids)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, np.clip(expected, -65504, 65504).astype(np.float16))
    gradients = np.full((500, DIM), 1e-4)
    gradients[0] = 1e9
    served.update(own, ids, gradients, 0.1)
    whole.update(ids, np.clip(gradients, None, 65504).astype(np.float16).astype(np.float64))
    # Servers keep rows as they are.
    np.testing.assert_array_equal(served.state(own)["embeddings"], whole.state()["embeddings"])


class Full:
    """A log on a disk that takes so many changes, until there is room."""

    def __init__(self, most: int) -> None:
        self.left = most

    def append(self, record: Any) -> None:
        if not self.left:
            raise RondeError("the disk takes no more")
        self.left -= 1

    def tick(self) -> None:
        """Nothing waits."""


def test_a_push_that_was_refused_is_raised_by_the_next_look_up() -> None:
    """The look-up says that it must contain that push, which the server never makes: nobody waits for it."""
    full = Full(2)
    with serving(journal=full) as servers:
        client = servers.client()
        served, own = Served(client, ONE), Table(config())
        served.compile(own)
        (ids, gradients), *_ = steps(1)
        served.update(own, ids, gradients, 0.1)
        before = served.look_up(own, ids)
        served.update(own, ids, gradients, 0.1)
        with pytest.raises(ServerRefused, match="the disk takes no more"):
            served.look_up(own, ids)
        with pytest.raises(ServerRefused, match="the disk takes no more"):
            served.settle()
        full.left = 10
        served.update(own, ids, gradients, 0.1)
        assert (served.look_up(own, ids) != before).all()
        client.close()
