"""A client behind a line that damages what goes over it, in both directions."""

from __future__ import annotations

import random
import threading

import pytest
import torch

from ronde.server.dense import array_of, tensor_of
from ronde.server.transport.client import Client
from ronde.server.transport.wire import Opcode
from server.relay import relay
from server.running import TOKEN, process

pytestmark = pytest.mark.timeout(60)


class Damages:
    """Flips, drops or doubles bytes of some pieces.

    Args:
        share: the share of pieces that are damaged.
    """

    def __init__(self, share: float, seed: int) -> None:
        self._share, self._random, self._one_at_a_time = share, random.Random(seed), threading.Lock()
        self.count = 0

    def __call__(self, direction: str, piece: bytes) -> bytes:
        with self._one_at_a_time:
            return bytes(self._damage(bytearray(piece)))

    def _damage(self, piece: bytearray) -> bytearray:
        if len(piece) < 200 or self._random.random() > self._share:  # a greeting may get through
            return piece
        self.count += 1
        place = self._random.randrange(len(piece))
        match self._random.choice(["flip", "flip", "flip", "drop", "double"]):
            case "drop":
                del piece[place : place + self._random.randint(1, 9)]
            case "double":
                piece[place:place] = piece[place : place + self._random.randint(1, 9)]
            case _:
                piece[place] ^= self._random.randint(1, 255)
        return piece


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
def test_training_over_a_broken_line_ends_with_the_right_numbers(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    alone = torch.nn.Parameter(torch.zeros(500))
    optimizer = torch.optim.Adam([alone], lr=0.1)
    meta = {"keys": [1], "sizes": [500], "dtype": "float32"}
    told = {"optimizer": 0, "class": "Adam", "options": {"lr": 0.1}, "pull": True}
    damages = Damages(0.15, seed)
    with process("tcp://127.0.0.1:*") as endpoint, relay(endpoint, damages) as broken:
        client = Client([broken], bytes.fromhex(TOKEN), silence=0.3, timeout=20, patience=0.1)
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
        assert damages.count > 10
    assert sum(status.meta["refused"].values()) > 3, "damaged messages are counted"
    assert status.meta["counts"]["applied"] == 101, "each change was made once"
