"""Servers and workers on a line that others hear, change and repeat."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
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
from server.running import TOKEN

RUN = bytes.fromhex(TOKEN)
VALUES = np.frombuffer(b"gradient" * 7_000, np.float32)


class Tapped:
    """A line to a server that keeps what goes over it, and may change pieces.

    Args:
        change: function of a direction and a piece, which returns the piece that goes on.
    """

    def __init__(self, endpoint: str, change: Callable[[str, bytes], bytes]) -> None:
        host, port = endpoint.removeprefix("tcp://").split(":")
        self._target, self._change = (host, int(port)), change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.heard: dict[str, bytearray] = {"to server": bytearray(), "to client": bytearray()}
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._end(self._listener)
        self._threads[0].join()  # nobody else comes
        for each in self._sockets:
            self._end(each)
        for each in self._threads:
            each.join()

    def _end(self, each: socket.socket) -> None:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for name, ends in (("to server", (near, far)), ("to client", (far, near))):
                    self._threads.append(threading.Thread(target=self._pass_on, args=(name, *ends)))
                    self._threads[-1].start()

    def _pass_on(self, name: str, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                piece = self._change(name, piece)
                self.heard[name] += piece
                target.sendall(piece)


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


@contextlib.contextmanager
def tapped(
    endpoint: str, change: Callable[[str, bytes], bytes] = lambda name, piece: piece
) -> Iterator[Tapped]:
    with contextlib.closing(Tapped(endpoint, change)) as line:
        yield line


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
    with serving() as service, tapped(service.endpoint) as line:
        train(line.endpoint)
        for heard in line.heard.values():
            assert len(heard) > VALUES.nbytes
            for secret in (RUN, TOKEN.encode(), b"gradient", b"float32", b"keys"):
                assert secret not in heard


def test_a_conversation_that_is_repeated_changes_nothing() -> None:
    with serving() as service:
        with tapped(service.endpoint) as line:
            applied = train(line.endpoint)["counts"]["applied"]
            repeated = bytes(line.heard["to server"])
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


@pytest.mark.parametrize("direction", ["to server", "to client"])
def test_a_changed_byte_is_found_and_the_message_sent_again(direction: str) -> None:
    changed: list[int] = []

    def change(name: str, piece: bytes) -> bytes:
        if changed or name != direction or len(piece) < 30_000:
            return piece
        changed.append(len(piece))
        return piece[:20_000] + bytes([piece[20_000] ^ 1]) + piece[20_001:]

    with serving() as service, tapped(service.endpoint, change) as line:
        status = train(line.endpoint)
    assert changed
    assert service.refused["seal"] == (direction == "to server")
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
