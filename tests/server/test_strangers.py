"""Servers and workers on a line that others hear, change and repeat."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zmq

from ronde.server.dense import DenseShard
from ronde.server.parameter_server import ParameterServer
from ronde.server.shard import ServerShard
from ronde.server.transport.client import Client, ServerRefused
from ronde.server.transport.envelope import Kind, close_envelope, open_envelope, read_refusal
from ronde.server.transport.service import Service
from ronde.server.transport.wire import Message, Opcode, encode
from server.relay import TO_CLIENT, TO_SERVER, relay
from server.running import TOKEN

RUN = bytes.fromhex(TOKEN)
VALUES = np.frombuffer(b"gradient" * 7_000, np.float32)


@contextlib.contextmanager
def serving(told: list[str] | None = None) -> Iterator[Service]:
    about: dict[str, Any] = {}
    server = ParameterServer(ServerShard({"dense": DenseShard()}), None, workers=1, about=about)
    tell = (lambda words: None) if told is None else told.append
    service = Service("tcp://127.0.0.1:*", RUN, server, tell=tell)
    about["refused"] = service.refused
    running = threading.Thread(target=service.run)
    running.start()
    try:
        yield service
    finally:
        service.stop()
        running.join()
        service.close()


class Heard:
    """Keeps what a relay passes on, in each direction."""

    def __init__(self) -> None:
        self.pieces = {TO_SERVER: bytearray(), TO_CLIENT: bytearray()}

    def __call__(self, name: str, piece: bytes) -> bytes:
        self.pieces[name] += piece
        return piece


def train(endpoint: str) -> dict[str, Any]:
    """Add values twice, check the sum, and return the server's status."""
    meta = {"keys": [1], "sizes": [VALUES.size], "dtype": "float32", "pull": True}
    with contextlib.closing(Client([endpoint], RUN, timeout=20, patience=0.2)) as client:
        for times in (1, 2):
            (answer,) = client.wait([client.send(0, Opcode.ADD, meta, [VALUES], changes=True)])
            assert np.array_equal(answer.arrays[0], VALUES * np.float32(times))
        (status,) = client.wait([client.send(0, Opcode.STATUS)])
    return status.meta


def test_who_listens_learns_neither_token_nor_values() -> None:
    line = Heard()
    with serving() as service, relay(service.endpoint, line) as endpoint:
        train(endpoint)
        for heard in line.pieces.values():
            assert len(heard) > VALUES.nbytes
            for secret in (RUN, TOKEN.encode(), b"gradient", b"float32", b"keys"):
                assert secret not in heard


def test_a_conversation_that_is_repeated_changes_nothing() -> None:
    line = Heard()
    with serving() as service:
        with relay(service.endpoint, line) as endpoint:
            applied = train(endpoint)["counts"]["applied"]
            repeated = bytes(line.pieces[TO_SERVER])
        host, port = service.endpoint.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as stranger:
            greeting = 64  # ZeroMQ's, which each end sends first
            stranger.sendall(repeated[:greeting])
            received = 0
            while received < greeting:
                received += len(stranger.recv(greeting - received))
            stranger.sendall(repeated[greeting:])
            while service.refused["session"] < 4:  # hello, two changes, status
                assert stranger.recv(65536)
        with contextlib.closing(Client([service.endpoint], RUN, timeout=20)) as client:
            (status,) = client.wait([client.send(0, Opcode.STATUS)])
    assert status.meta["counts"]["applied"] == applied == 2
    assert service.refused["token"] == 1, "the proof is for another challenge"


@pytest.mark.parametrize("direction", [TO_SERVER, TO_CLIENT])
def test_a_changed_byte_is_found_and_the_message_sent_again(direction: str) -> None:
    changed: list[int] = []

    def change(name: str, piece: bytes) -> bytes:
        if changed or name != direction or len(piece) < 30_000:
            return piece
        changed.append(len(piece))
        return piece[:20_000] + bytes([piece[20_000] ^ 1]) + piece[20_001:]

    with serving() as service, relay(service.endpoint, change) as endpoint:
        status = train(endpoint)
    assert changed
    assert service.refused["seal"] == (direction == TO_SERVER)
    assert status["counts"]["applied"] == 2


def test_strangers_are_refused_and_named() -> None:
    told: list[str] = []
    with serving(told) as service:
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.setsockopt(zmq.RCVTIMEO, 20_000)
            stranger.connect(service.endpoint)
            hello = encode(Message(Opcode.HELLO, {"workers": 1, "arena": [[1, 1, 1, 1]]}))
            for kind, frames in (
                ("truncated", [b"?"]),
                ("truncated", [b""]),
                ("magic", [b"x" * 64, b"[]"]),
                ("magic", hello),
                ("version", [b"RNDE\1" + bytes(40)]),
                ("envelope", [b"RNDE\2\77" + bytes(40)]),
                ("session", [close_envelope(Kind.SEALED, 1) + hello[0]]),
                ("session", [close_envelope(Kind.PROOF) + bytes(32)]),
                ("token", [close_envelope(Kind.CHALLENGE) + bytes(32)]),
            ):
                stranger.send_multipart(frames)
                (answer,) = stranger.recv_multipart()
                assert read_refusal(open_envelope([answer]).body)[0] == kind
            stranger.send(close_envelope(Kind.CHALLENGE) + bytes(31) + b"\t")
            assert open_envelope(stranger.recv_multipart()).kind is Kind.RESPONSE
            stranger.send(close_envelope(Kind.PROOF) + bytes(32))
            (answer,) = stranger.recv_multipart()
            assert read_refusal(open_envelope([answer]).body) == (
                "token",
                "the token is not that of this run [R427]",
            )
            stranger.close(linger=0)
        host, port = service.endpoint.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        train(service.endpoint)
    assert told == ["127.0.0.1 is refused: it has another token than this run, or none [R427]"]


def test_a_worker_with_another_token_is_refused_and_named() -> None:
    told: list[str] = []
    with serving(told) as service:
        with pytest.raises(ServerRefused, match="the token is not that of this run"):
            Client([service.endpoint], bytes(16), timeout=20)
        train(service.endpoint)
    assert service.refused["token"] == 1
    assert told == ["127.0.0.1 is refused: it has another token than this run, or none [R427]"]


def test_a_server_that_was_started_again_gets_a_new_session() -> None:
    with serving() as service, contextlib.closing(Client([service.endpoint], RUN, timeout=20)) as client:
        service._sessions._sessions.clear()
        (status,) = client.wait([client.send(0, Opcode.STATUS)])
    assert status.meta["counts"]["applied"] == 0
    assert service.refused["session"] >= 1
