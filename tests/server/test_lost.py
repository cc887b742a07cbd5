"""A worker meets a server that came back, with or without the changes that it had confirmed."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import ronde.server.transport.client
from ronde.errors import PeerLost, UsageError
from ronde.server.parameter_server import ParameterServer
from ronde.server.shard import ServerShard
from ronde.server.transport.client import Client, PendingRequest, ServerRefused
from ronde.server.transport.service import Service
from ronde.server.transport.wire import Opcode
from server.records import shard

TOKEN = bytes(16)


@contextlib.contextmanager
def serving(endpoint: str, state: ServerShard, workers: int = 1) -> Iterator[None]:
    service = Service(endpoint, TOKEN, ParameterServer(state, None, workers=workers))
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield
    finally:
        service.stop()
        thread.join()
        service.close()


def add(client: Client, room: np.ndarray) -> PendingRequest:
    """A change whose array lies in shared memory."""
    values = room.view(np.float32)
    values[:] = 1
    meta = {"keys": [0], "sizes": [len(values)], "dtype": "float32", "pull": True}
    return client.send(0, Opcode.ADD, meta, [values], changes=True)


@pytest.mark.parametrize("survives", [True, False])
def test_a_server_that_came_back(survives: bool) -> None:
    endpoint = f"ipc://@ronde-test-{os.getpid()}-{os.urandom(3).hex()}"
    state = shard()
    with serving(endpoint, state):
        client = Client([endpoint], TOKEN, timeout=60)
        room = client.room(400)
        client.wait([add(client, room)])
    try:
        with serving(endpoint, state if survives else shard()):
            request = add(client, room)
            if survives:
                assert client.wait([request])[0].arrays[0][0] == 2
            else:
                with pytest.raises(ServerRefused, match="without 1 changes that it had confirmed"):
                    client.wait([request])
    finally:
        client.close()


def test_a_worker_that_does_not_wait_asks_again_for_others() -> None:
    """Rank 1 has pushed and waits for rank 0 in a collective, rank 0 waits for the step of both."""
    endpoint = f"ipc://@ronde-test-{os.getpid()}-{os.urandom(3).hex()}"
    with contextlib.ExitStack() as stack:
        with serving(endpoint, shard(), 2):
            first, second = (
                stack.enter_context(
                    contextlib.closing(Client([endpoint], TOKEN, worker=rank, workers=2, timeout=20))
                )
                for rank in range(2)
            )
            pushed = add(second, second.room(400))
            second.wait([second.send(0, Opcode.STATUS)])  # the server has it
        with serving(endpoint, shard(), 2):
            first.wait([add(first, first.room(400))])
            second.wait([pushed])


def test_an_answer_is_written_to_shared_memory_once() -> None:
    """Asked again, it must not be: the worker may use that memory for something else by then."""
    endpoint = f"ipc://@ronde-test-{os.getpid()}-{os.urandom(3).hex()}"
    with serving(endpoint, shard()):
        client = Client([endpoint], TOKEN, timeout=60)
        try:
            client.wait([add(client, client.room(400))])
            into = client.room(400)
            request = client.send(0, Opcode.PULL, {"keys": [0], **client.into(into)})
            client.wait([request])
            assert (into.view(np.float32) == 1).all()
            into[:] = 7
            client._ask(request)
            client.wait([client.send(0, Opcode.STATUS)])  # the answer to what was asked before is here too
            assert (into == 7).all()
        finally:
            client.close()


def test_a_server_that_does_not_answer_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ronde.server.transport.client, "_NOTICE_S", 0.05)
    endpoint = f"ipc://@ronde-test-{os.getpid()}-{os.urandom(3).hex()}"
    said: list[str] = []
    with pytest.raises(PeerLost):
        Client([endpoint], TOKEN, timeout=0.2, say=said.append)
    assert len(said) == 1
    assert "has not answered for" in said[0]


def test_no_endpoint() -> None:
    with pytest.raises(UsageError, match="tcp://127"):
        Client(["tcp://127.0.0.1"], TOKEN)
