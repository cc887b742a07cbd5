"""With single rows too, values lie in memory as on one device, on all ranks: random fills run through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

_D = torch.float64


class Attended(nn.Module):
    """Channels come last behind a product, where there are several rows; torch's kernels see to it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.enter(x)
        mixed = torch.bmm(found.flatten(2).transpose(1, 2), found.new_ones(len(x), 4, 4))
        return self.leave(mixed.transpose(1, 2).reshape(found.shape))


class Second(nn.Module):
    """The batch comes out on the second axis, and first in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x[:, 0]).transpose(0, 1)


def _as_it_is(value: torch.Tensor) -> torch.Tensor:
    return value


def _swapped(value: torch.Tensor) -> torch.Tensor:
    return value.transpose(0, 1).tanh()


def _last(value: torch.Tensor) -> torch.Tensor:
    return value.movedim(0, -1).softmax(0).contiguous() - 1


@pytest.mark.parametrize(
    ("world_size", "plan"), [(2, "ddp"), (3, "ddp"), (2, "micro-batches=2"), (2, "zero3,micro-batches=2")]
)
def test_a_single_row_lies_as_one_of_several(ranks: Any, world_size: int, plan: str) -> None:
    for found in ranks(world_size, _filled_on_ranks, plan):
        assert found == []


def _filled_on_ranks(rank: Any, plan: str) -> list[str]:
    expected = _filled(rank.world_size)
    with rank.session(plan) as session:
        found = _filled(rank.world_size)
        assert session.tally.sharded.keys() == {"Attended", "Second"}
        assert not session.notes
    return [name for name in expected if not torch.allclose(expected[name], found[name], rtol=1e-12)]


def _filled(world_size: int) -> dict[str, torch.Tensor]:
    """Random fills of what models return and the script makes of it, and gradients that come through them."""
    found: dict[str, torch.Tensor] = {}
    for kind in (Attended, Second):
        torch.manual_seed(0)
        model: Any = kind().double()
        for rows in (5, 4, 3, 2):
            x = torch.randn(rows, 3, 6, 5, dtype=_D)
            # Of what is made of single rows on all ranks torch does not know how one device's would lie.
            for made in _MADE if rows > world_size else _MADE[:1]:
                value = made(model(x))
                noise = torch.randn_like(value.detach())
                (gradient,) = torch.autograd.grad((value * noise).square().sum(), model.parameters())[:1]
                name = f"{kind.__name__} {rows} {made.__name__}"
                found[name], found[f"gradient of {name}"] = noise + 0, gradient + 0
    return found


_MADE: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (_as_it_is, torch.tanh, _swapped, _last)
