"""What is too large for one message is refused by name, and not asked for again and again."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ronde.server.parameter_server import ParameterServer
from ronde.server.transport import wire
from ronde.server.transport.client import Client, PendingRequest, ServerRefused
from ronde.server.transport.service import Service
from ronde.server.transport.wire import Limits, Opcode
from server.records import shard

TOKEN = bytes(16)


def add(client: Client, numel: int, *, pull: bool) -> PendingRequest:
    meta = {"keys": [numel], "sizes": [numel], "dtype": "float64", "pull": pull}
    return client.send(0, Opcode.ADD, meta, [np.ones(numel)], changes=True)


def test_requests_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(nbytes=600)
    monkeypatch.setattr(wire, "_LIMITS", limits)
    server = ParameterServer(shard(), None, workers=1)
    service = Service("tcp://127.0.0.1:*", TOKEN, server, limits)
    running = threading.Thread(target=service.run)
    running.start()
    try:
        client = Client([service.endpoint], TOKEN, timeout=20)
        client.wait([add(client, 40, pull=False), add(client, 41, pull=False)])
        with pytest.raises(ServerRefused, match=r"add: a message of .* use more servers"):
            add(client, 80, pull=False)
        with pytest.raises(ServerRefused, match=r"the answer: a message of .* is too large"):
            client.wait([client.send(0, Opcode.PULL, {"keys": [40, 41]})])
        assert client.wait([add(client, 40, pull=True)])[0].arrays[0][0] == 2  # and it goes on
        client.close()
    finally:
        service.stop()
        running.join()
        service.close()
