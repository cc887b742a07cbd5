"""einops keeps shapes in caches of functions; models with it are cut all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from hazards.harness import Hazard, check, train
from ronde.testing.run_ranks import Rank
from rowwise.one_rank import observe
from rowwise.rowwise_cases import Written, linear

T = torch.Tensor
einops: Any = pytest.importorskip("einops")


def heads(self: Any, x: T) -> T:
    h = einops.rearrange(self.layer(x), "b n (h d) -> b h n d", h=2)
    return einops.rearrange(h @ h.transpose(-1, -2) @ h, "b h n d -> b n (h d)")


def prefixed(self: Any, x: T) -> T:
    first = einops.repeat(self.first, "d -> b 1 d", b=x.shape[0])
    joined, shapes = einops.pack([first, self.layer(x)], "b * d")
    return einops.unpack(joined, shapes, "b * d")[1] + einops.repeat(first, "b 1 d -> b n d", n=x.shape[1])


def pieces(self: Any, x: T) -> T:
    h = einops.rearrange(x, "b (n p) d -> (b n) (p d)", p=2)
    return einops.rearrange(self.wide(h), "(b n) (p d) -> b (n p) d", b=len(x), p=2)


FORWARDS: dict[str, Callable[[Any, T], T]] = {
    "rearrange": heads,
    "repeat and pack": prefixed,
    "rows joined and taken apart": pieces,
    "reduce": lambda self, x: einops.reduce(self.layer(x), "b n d -> b d", "mean"),
    "einsum": lambda self, x: einops.einsum(self.layer(x), x, "b n d, b m d -> b n m"),
    "layers": lambda self, x: self.layers(self.layer(x)),
}


def model(name: str) -> nn.Module:
    from einops.layers.torch import Rearrange, Reduce

    layers = nn.Sequential(Rearrange("b n (h d) -> b h n d", h=2), Reduce("b h n d -> b n d", "max"))
    held = {"layer": linear(), "wide": linear(12, 12), "layers": layers}
    return Written(FORWARDS[name], **held, first=nn.Parameter(torch.randn(6)))


@pytest.mark.parametrize("name", FORWARDS)
def test_is_one_piece_before_and_after_plain_calls(name: str) -> None:
    module, x = model(name), torch.randn(8, 4, 6)
    for _ in range(2):
        assert observe(module, (x,)).verdict.sharded
        module(x)  # which leaves plain shapes in its caches


class Net(nn.Module):
    """An attention; makes its own loss where it is told so, and so runs in parts."""

    def __init__(self, *, own_loss: bool) -> None:
        super().__init__()
        self.into, self.out, self.own_loss = nn.Linear(1, 6), nn.Linear(6, 3), own_loss
        self.attend = nn.ModuleList([Written(heads, layer=linear()) for _ in range(2)])

    def forward(self, x: T, y: T) -> T:
        h = self.into(x.unsqueeze(-1))
        for each in self.attend:
            h = h + each(h)
        out = self.out(h).mean(1)
        return nn.functional.cross_entropy(out, y) if self.own_loss and self.training else out


def _one_piece() -> Iterator[Any]:
    yield from train(Net(own_loss=False), call=lambda model, x, y: model(x, y))


def _in_parts() -> Iterator[Any]:
    yield from train(Net(own_loss=True), call=lambda model, x, y: model(x, y), loss=lambda out, y: out)


HAZARDS = {
    "one piece": Hazard(_one_piece, "whole"),
    "in parts": Hazard(_in_parts, "parts", "its output has no batch axis"),
}


def _hazard(rank: Rank, name: str) -> list[str]:
    return check(rank, HAZARDS[name])


@pytest.mark.parametrize("name", HAZARDS)
@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_trains_as_on_one_device(ranks: Any, name: str, world: int) -> None:
    assert ranks(world, _hazard, name) == [[]] * world
