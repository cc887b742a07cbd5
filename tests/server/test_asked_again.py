"""A worker that waits long asks whether a server has its request, and sends again only what it has not."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

from ronde.server.parameter_server import ParameterServer
from ronde.server.transport.client import Client, PendingRequest
from ronde.server.transport.service import Reply, Service
from ronde.server.transport.wire import Message, Opcode
from server.records import shard

TOKEN = bytes(16)
ASKED_OFTEN = 5


class Counting:
    """Passes messages on to a server and counts them."""

    def __init__(self, workers: int) -> None:
        self._server = ParameterServer(shard(), None, workers=workers)
        self.came: collections.Counter[Opcode] = collections.Counter()
        self.tick = self._server.tick

    def handle(self, message: Message, reply: Reply) -> None:
        self.came[message.operation] += 1
        self._server.handle(message, reply)


@contextlib.contextmanager
def serving(handler: Any, endpoint: str = "tcp://127.0.0.1:*") -> Iterator[Service]:
    service = Service(endpoint, TOKEN, handler)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield service
    finally:
        service.stop()
        thread.join()
        service.close()


def add(client: Client) -> PendingRequest:
    values = np.ones(10_000, np.float32)
    meta = {"keys": [0], "sizes": [values.size], "dtype": "float32", "pull": True}
    return client.send(0, Opcode.ADD, meta, [values], changes=True)


@pytest.fixture
def clients() -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def made(endpoint: str, worker: int, workers: int) -> Client:
            client = Client([endpoint], TOKEN, worker=worker, workers=workers, patience=0.02, timeout=20)
            return stack.enter_context(contextlib.closing(client))

        yield made


def test_what_a_server_has_is_not_sent_again(clients: Any) -> None:
    counting = Counting(workers=2)
    with serving(counting) as service:
        first, second = (clients(service.endpoint, worker, 2) for worker in range(2))
        request = add(first)
        while counting.came[Opcode.STATUS] < ASKED_OFTEN:  # it waits for the other worker
            first.poll()
        assert counting.came[Opcode.ADD] == 1
        second.wait([add(second)])
        (answer,) = first.wait([request])
    assert (answer.arrays[0] == 2).all()
    assert counting.came[Opcode.ADD] == 2


def test_what_was_lost_is_sent_again(clients: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(workers=1)
    with serving(counting) as service:
        client = clients(service.endpoint, 0, 1)
        post = client._post
        monkeypatch.setattr(client, "_post", lambda *_: None)
        request = add(client)
        monkeypatch.setattr(client, "_post", post)
        (answer,) = client.wait([request])
    assert (answer.arrays[0] == 1).all()
    assert counting.came[Opcode.ADD] == 1
    assert counting.came[Opcode.STATUS] >= 1


def test_an_answer_that_was_lost_is_given_again(clients: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(workers=1)
    with serving(counting) as service:
        client = clients(service.endpoint, 0, 1)
        send = service._send
        lost: list[bytes] = []
        monkeypatch.setattr(service, "_send", lambda identity, frames: lost.append(identity))
        request = add(client)
        while not lost:
            sleep(0.001)
        monkeypatch.setattr(service, "_send", send)
        (answer,) = client.wait([request])
    assert (answer.arrays[0] == 1).all(), "it was made once"
    assert counting.came[Opcode.ADD] == 2


def test_a_connection_that_a_server_does_not_know_says_hello_again(clients: Any) -> None:
    counting = Counting(workers=2)
    with serving(counting) as service:
        first, second = (clients(service.endpoint, worker, 2) for worker in range(2))
        request = add(first)
        while not counting.came[Opcode.ADD]:
            sleep(0.001)
        service._connections.clear()  # as after a line that was broken: answers go nowhere
        second.wait([add(second)])
        (answer,) = first.wait([request])
    assert (answer.arrays[0] == 2).all()


@pytest.mark.parametrize("asked", [3, "all", {"1": 2}, [[1]], [None, 2**70, True]])
def test_nonsense_is_asked(asked: Any, clients: Any) -> None:
    with serving(Counting(workers=1)) as service:
        client = clients(service.endpoint, 0, 1)
        request = client.send(0, Opcode.STATUS, {"asked": asked})
        if isinstance(asked, list):
            assert client.wait([request])[0].meta["waiting"] == []
        else:
            with pytest.raises(Exception, match="give a list of request numbers"):
                client.wait([request])


def test_memory_of_a_worker_that_was_killed_is_let_go() -> None:
    endpoint = f"ipc://@ronde-test-{os.getpid()}-{os.urandom(3).hex()}"
    ready, tell = os.pipe()
    worker = os.fork()
    if not worker:
        client = Client([endpoint], TOKEN, timeout=20)
        client.room(1 << 20)
        client.wait([client.send(0, Opcode.STATUS)])
        (described,) = client.arena.described if client.arena else ()
        os.write(tell, b"%d\n" % described[2])
        os._exit(0)
    os.close(tell)
    with serving(ParameterServer(shard(), None, workers=1), endpoint), os.fdopen(ready) as told:
        inode = told.readline().strip()
        os.waitpid(worker, 0)
        until = monotonic() + 10
        while f" {inode} " in Path("/proc/self/maps").read_text():
            assert monotonic() < until, "it is still there"
            sleep(0.01)
