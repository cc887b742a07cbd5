"""Messages between ranks and the coordinator, and strangers at its port."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ronde.compat.coordinator import Coordinator, CoordinatorConnection, Lost, connect
from ronde.compat.negotiation import Negotiation, Response, TensorRequest

TOKEN = bytes(range(16))


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, CoordinatorConnection[TensorRequest]]]:
    """A peer's socket, and this end of the connection to it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname())
        link = CoordinatorConnection(server.accept()[0], TensorRequest)
        yield peer, link
        peer.close()
        link.close()


class Malicious:
    """An object that ends the process when it is unpickled."""

    def __reduce__(self) -> Any:
        return os._exit, (3,)


def test_messages_arrive_equal_and_repeated_ones_as_the_same_instance() -> None:
    request = TensorRequest(
        name="x", kind="allreduce", dtype="float32", shape=(2, 3), nbytes=24, operation="sum",
        before=np.float64(0.5), splits=(np.int64(1), 2), counts=(("a", 1),),
    )  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = CoordinatorConnection(socket.create_connection(server.getsockname()), Response)
        receiver = CoordinatorConnection(server.accept()[0], TensorRequest)
        sender.send(request, request)
        found: list[TensorRequest] = []
        while len(found) < 2:
            found += receiver.receive()
        assert found[0] == request
        assert found[0] is found[1]
        receiver.send(response := Response(kind="allreduce", requests=(request,), rows=((1, 2),), error="e"))
        assert sender.receive() == [response]
        sender.close()
        receiver.close()


@pytest.mark.parametrize(
    "sent",
    [
        pickle.dumps(Malicious()),
        b"\xc1",
        b"\x80",  # an object without its fields
        b"\x82\xa4name\xa1x\xa4kind\xa5other",
        b"\x91" * 100_000,
    ],
    ids=["pickle", "reserved", "empty", "kind", "deep"],
)
def test_what_is_no_request_ends_the_connection(
    sent: bytes, ends: tuple[socket.socket, CoordinatorConnection[TensorRequest]]
) -> None:
    peer, link = ends
    peer.sendall(struct.pack("<I", len(sent)) + sent)
    with pytest.raises(Lost):
        _receive_until_lost(link)


def _receive_until_lost(link: CoordinatorConnection[TensorRequest]) -> None:
    while True:
        assert link.receive() == []


@pytest.mark.parametrize("length", [1 << 30, 1 << 31, (1 << 31) | 7])
def test_what_is_no_length_ends_the_connection(
    length: int, ends: tuple[socket.socket, CoordinatorConnection[TensorRequest]]
) -> None:
    peer, link = ends
    peer.sendall(struct.pack("<I", length))
    with pytest.raises(Lost, match="is not the length or number of a message"):
        link.receive()


def test_strangers_do_not_reach_the_negotiation() -> None:
    done: list[Response] = []
    coordinator = Coordinator(Negotiation(2, 0), 2, "127.0.0.1", TOKEN, done.append, starts_within=30)
    starting = threading.Thread(target=coordinator.start)
    starting.start()
    strangers = [socket.create_connection(coordinator.address) for _ in range(5)]
    strangers[1].close()  # the first says nothing
    strangers[2].sendall(pickle.dumps(Malicious()) * 10)
    strangers[3].sendall(bytes(16) + struct.pack("<I", 1))
    strangers[4].sendall(TOKEN + struct.pack("<I", 9))
    link = connect(coordinator.address, 1, TOKEN, starts_within=30)
    starting.join()
    request = TensorRequest(name="x", kind="barrier")
    link.send(request)
    coordinator.submit([request])
    assert link.receive() == [Response(kind="barrier", requests=(request,))]
    close = TensorRequest(name="close", kind="close")
    link.send(close)
    coordinator.submit([close])
    assert [each.kind for each in link.receive()] == ["close"]
    coordinator.join()
    link.close()
    assert [each.kind for each in done] == ["barrier", "close"]
    for each in strangers:
        each.close()
