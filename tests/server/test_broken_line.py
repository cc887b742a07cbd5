"""A client behind a line that damages what goes over it, in both directions."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator

import pytest
import torch

from ronde.server.dense import array_of, tensor_of
from ronde.server.transport.client import Client
from ronde.server.transport.wire import Opcode
from server.running import TOKEN, process

pytestmark = pytest.mark.timeout(60)


class BrokenLine:
    """Passes TCP on, and flips, drops or doubles bytes of some pieces.

    Args:
        target: where it leads to.
        damaged: the share of pieces that are damaged.
    """

    def __init__(self, target: tuple[str, int], damaged: float, seed: int) -> None:
        self._target, self._damaged = target, damaged
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.damages = 0
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
                self._sockets.append(near)
                far = socket.create_connection(self._target)
                self._sockets.append(far)
                for ends in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._pass_on, args=ends))
                    self._threads[-1].start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                target.sendall(self._damage(bytearray(piece)))
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _damage(self, piece: bytearray) -> bytearray:
        if len(piece) < 200 or self._random.random() > self._damaged:  # a greeting may get through
            return piece
        self.damages += 1
        place = self._random.randrange(len(piece))
        match self._random.choice(["flip", "flip", "flip", "drop", "double"]):
            case "drop":
                del piece[place : place + self._random.randint(1, 9)]
            case "double":
                piece[place:place] = piece[place : place + self._random.randint(1, 9)]
            case _:
                piece[place] ^= self._random.randint(1, 255)
        return piece


@contextlib.contextmanager
def line(endpoint: str, seed: int) -> Iterator[BrokenLine]:
    host, port = endpoint.removeprefix("tcp://").split(":")
    made = BrokenLine((host, int(port)), 0.15, seed)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
def test_training_over_a_broken_line_ends_with_the_right_numbers(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    alone = torch.nn.Parameter(torch.zeros(500))
    optimizer = torch.optim.Adam([alone], lr=0.1)
    meta = {"keys": [1], "sizes": [500], "dtype": "float32"}
    told = {"optimizer": 0, "class": "Adam", "options": {"lr": 0.1}, "pull": True}
    with process("tcp://127.0.0.1:*") as endpoint, line(endpoint, seed) as broken:
        client = Client([broken.endpoint], bytes.fromhex(TOKEN), silence=0.3, timeout=20, patience=0.1)
        client.wait([client.send(0, Opcode.INIT, meta, [array_of(torch.zeros(500))], changes=True)])
        for _ in range(100):
            gradient = torch.randn(500, generator=generator)
            alone.grad = gradient
            optimizer.step()
            request = client.send(0, Opcode.PUSH_STEP, {**meta, **told}, [array_of(gradient)], changes=True)
            (answer,) = client.wait([request])
            assert torch.equal(tensor_of(answer.arrays[0], torch.float32), alone.detach())
        client.close()
        whole = Client([endpoint], bytes.fromhex(TOKEN))
        (status,) = whole.wait([whole.send(0, Opcode.STATUS)])
        whole.close()
        assert broken.damages > 10
    assert sum(status.meta["refused"].values()) > 3, "damaged messages are counted"
    assert status.meta["counts"]["applied"] == 101, "each change was made once"
