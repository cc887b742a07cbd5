"""Batch norm inside models on shards has the statistics, gradients and buffers of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from both_ways import ROWS, Inputs, compare_all
from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES

_D = torch.float64


class Functional(nn.Module):
    """Normalizes without a layer, by either spelling."""

    def __init__(self, native: bool) -> None:
        super().__init__()
        self.native = native
        self.weight = nn.Parameter(torch.rand(3))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("variance", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.native:
            return torch.batch_norm(
                x, self.weight, None, self.mean, self.variance, self.training, 0.2, 1e-5, False
            )
        return F.batch_norm(x, self.mean, self.variance, self.weight, training=self.training, momentum=0.2)


class OfAParameter(nn.Module):
    """Normalizes something that has no batch axis, and its rows if it is to."""

    def __init__(self, norm: Callable[[], nn.Module], rows: bool) -> None:
        super().__init__()
        self.prototypes, self.norm = nn.Parameter(torch.rand(3, 3)), norm()
        self.other = nn.BatchNorm1d(3) if rows else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(x @ self.norm(self.prototypes).t())


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "rows": (lambda: nn.BatchNorm1d(3), (ROWS, 3)),
    "sequence": (lambda: nn.BatchNorm1d(3), (ROWS, 3, 5)),
    "images": (lambda: nn.BatchNorm2d(3), (ROWS, 3, 2, 2)),
    "volumes": (lambda: nn.BatchNorm3d(3), (ROWS, 3, 2, 1, 2)),
    "cumulative": (lambda: nn.BatchNorm1d(3, momentum=None), (ROWS, 3)),
    "other momentum": (lambda: nn.BatchNorm1d(3, momentum=0.7, eps=1e-2), (ROWS, 3)),
    "not affine": (lambda: nn.BatchNorm1d(3, affine=False), (ROWS, 3)),
    "without running statistics": (lambda: nn.BatchNorm1d(3, track_running_stats=False), (ROWS, 3)),
    "functional": (lambda: Functional(False), (ROWS, 3)),
    "native": (lambda: Functional(True), (ROWS, 3, 2)),
    "of a parameter": (lambda: OfAParameter(lambda: nn.BatchNorm1d(3), False), (ROWS, 3)),
    "of a parameter and of rows": (lambda: OfAParameter(lambda: nn.BatchNorm1d(3), True), (ROWS, 3)),
    "of a parameter, keeping nothing": (
        lambda: OfAParameter(lambda: nn.BatchNorm1d(3, track_running_stats=False), True),
        (ROWS, 3),
    ),
    "in a network": (
        lambda: nn.Sequential(
            nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 3), nn.BatchNorm1d(3)
        ),
        (ROWS, 3),
    ),
}


def _trained(name: str, twice: bool) -> Callable[[Inputs], Any]:
    make, shape = LAYERS[name]

    def case(m: Inputs) -> Any:
        torch.manual_seed(1)
        module = make().double()
        found: list[Any] = []
        for step in range(3):
            module.train(step != 1)
            x = m.batch(*shape, low=-1 + step, high=4)
            out = module(x)
            if twice and step == 2:
                (gradient,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
                found.append(gradient)
                out = gradient.square() * 0.1 + out
            (out * out.sin()).sum().backward(inputs=list(module.parameters()) or None, retain_graph=True)
            found.append(out)
        found += [parameter.grad for parameter in module.parameters()]
        return [*found, *(value.clone() for value in module.buffers())]

    return case


def _normalized(rank: Rank, twice: bool) -> list[str]:
    return compare_all(rank, {name: _trained(name, twice) for name in LAYERS}, tolerance=1e-10)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("twice", [False, True], ids=["once", "gradient of a gradient"])
def test_statistics_are_those_of_the_whole_batch(ranks: Any, twice: bool, world_size: int) -> None:
    assert ranks(world_size, _normalized, twice) == [[]] * world_size


def _large_mean(rank: Rank) -> list[str]:
    """Where E[x^2] - E[x]^2 would cancel to nothing."""

    def case(m: Inputs) -> Any:
        module = nn.BatchNorm1d(3).double()
        out = module(m.batch(ROWS, 3, low=1e7, high=1e7 + 1, grad=False))
        return [out.detach(), module.running_var]

    return compare_all(rank, {"": case}, tolerance=1e-7)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_large_mean_does_not_spoil_the_variance(ranks: Any, world_size: int) -> None:
    assert ranks(world_size, _large_mean) == [[]] * world_size
