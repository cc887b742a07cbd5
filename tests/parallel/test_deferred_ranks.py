"""A model that is cut while it is built draws the numbers of one that is not, and is never whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import ronde
from ronde.comm.process_group import Comm
from ronde.runtime import api
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]
WIDTH, BLOCKS = 512, 6  # a layer has a mebibyte


class Block(nn.Module):
    """Notes how many bytes of the layers built so far are there."""

    def __init__(self, built: list[nn.Module], there: list[int]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        built.append(self.layer)
        with torch._C.DisableTorchFunctionSubclass():
            there.append(sum(each.weight.untyped_storage().nbytes() for each in built))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.layer(self.norm(x)))


class Net(nn.Module):
    def __init__(self, there: list[int]) -> None:
        super().__init__()
        built: list[nn.Module] = []
        self.embed = nn.Embedding(700, WIDTH)
        self.blocks = nn.ModuleList(Block(built, there) for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, 700, bias=False)
        self.head.weight = self.embed.weight
        self.apply(drawn)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def drawn(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)


def trained(there: list[int]) -> tuple[list[torch.Tensor], int]:
    """Losses and parameters of two steps in double precision, and a draw from the generator then."""
    torch.manual_seed(4)
    with ronde.deferred():
        net = Net(there).double()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    values: list[torch.Tensor] = []
    for _ in range(2):
        tokens = torch.randint(0, 700, (4, 5))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(tokens).view(-1, 700), tokens.view(-1))
        loss.backward()
        optimizer.step()
        values.append(loss.detach())
    return values + [each.detach().clone() for each in net.parameters()], int(torch.randint(1 << 30, ()))


def compared(rank: Rank, plan: str, copied: bool) -> tuple[bool, int]:
    """Whether a model built so is what it is under `ddp`, and the most bytes of layers that were there."""
    apart = mock.patch.object(Comm, "shares_host", False) if copied else nullcontext()
    results: list[Any] = []
    there: list[int] = []
    for each in ("ddp", plan):
        there.clear()
        with apart, rank.session(each) as session, mock.patch.object(api._Process, "session", session):
            results.append(trained(there))
    (expected, draw), (found, other) = results
    close = [torch.allclose(a, b, rtol=1e-11, atol=1e-13) for a, b in zip(expected, found, strict=True)]
    return draw == other and all(close), max(there)


@pytest.mark.parametrize(("plan", "copied"), [("zero3", False), ("zero3", True), ("central", False)])
def test_layers_are_cut_as_they_are_built(ranks: Ranks, plan: str, copied: bool) -> None:
    layer = 4 * WIDTH * WIDTH
    for right, most in ranks(2, compared, plan, copied):
        assert right
        assert most <= 2 * layer


def test_in_plain_python_it_does_nothing() -> None:
    there: list[int] = []
    trained(there)
    assert there[-1] == 4 * WIDTH * WIDTH * BLOCKS
