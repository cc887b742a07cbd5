"""Gradients of inputs and those of weights, apart, are those of one backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from parallel.cut_models import D
from ronde.parallel.pipeline.edges import GraphEnd
from ronde.parallel.pipeline.split_backward import input_half

_Function: Any = torch.autograd.Function


class Received(_Function):
    """A message, of which the gradient is told when backward comes to it."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, value: torch.Tensor, told: list[torch.Tensor]) -> torch.Tensor:
        ctx.told = told
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.told.append(gradient.clone())
        return None, None, None


class Odd(nn.Module):
    """Weights that are used twice, by hand, in outputs of their own, and by kernels of several."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.split, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.table, self.scale, self.conv = (
            nn.Embedding(5, 8),
            nn.Parameter(torch.ones(8)),
            nn.Conv1d(8, 8, 1),
        )
        self.attention, self.rnn = nn.MultiheadAttention(8, 2), nn.LSTM(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(self.twice(x)) * self.scale + self.twice(x).relu() + self.table.weight[:4]
        y = y + self.conv(y.transpose(1, 2)).transpose(1, 2)
        y = y + self.attention(y, y, y)[0]
        first, second = self.split(y).chunk(2, -1)
        y = y + torch.cat([second, first], -1) @ self.twice.weight
        return y + self.rnn(y)[0], self.table.weight.square().sum() + x.new_zeros(())


@pytest.mark.parametrize("receives", [True, False])
def test_both_halves_are_one_backward(receives: bool) -> None:
    torch.manual_seed(0)
    model, x = Odd().to(D), torch.randn(3, 4, 8, dtype=D)
    gradients = [torch.randn(3, 4, 8, dtype=D), torch.ones((), dtype=D)]
    told: list[torch.Tensor] = []

    def end() -> tuple[torch.Tensor, torch.Tensor]:
        token = torch.zeros((), requires_grad=True)
        return GraphEnd.apply(gradients, *model(Received.apply(token, x, told) if receives else x)), token

    whole, _ = end()
    whole.backward(torch.zeros_like(whole))
    expected = [*told, *(each.grad for each in model.parameters())]
    told.clear()
    model.zero_grad()
    half = input_half(*end())
    assert [each.grad for each in model.parameters()] == [None] * len(expected[receives:])
    assert len(told) == receives
    assert bool(half.late) == receives
    half()
    torch.testing.assert_close([*told, *(each.grad for each in model.parameters())], expected, rtol=0, atol=0)


def test_a_product_of_weights_is_computed_in_the_second_half() -> None:
    token, told = torch.zeros((), requires_grad=True), list[torch.Tensor]()
    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3))).to(D)
    y = layers(Received.apply(token, torch.randn(4, 8, dtype=D), told))
    end = GraphEnd.apply([torch.ones_like(y)], y)
    with torch.profiler.profile() as first:
        half = input_half(end, token)
    with torch.profiler.profile() as second:
        half()
    products = [
        sum(each.name == "aten::mm" for each in profile.events() or []) for profile in (first, second)
    ]
    assert products == [3, 3]
