"""What threads and processes of the script may take apart is compared: batches, and the value of a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ronde.errors import RondeError
from ronde.tensor.fingerprint import _numbers as numbers
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]


def _given_batches(rank: Rank, step: float) -> str:
    """To a model, by memory that processes share, say."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    with rank.session() as session:
        model(torch.ones(4, 3))
        session.context.compares = True
        try:
            model(torch.arange(12.0).view(4, 3).T.contiguous().T + step * rank.rank)
        except RondeError as error:
            return str(error).split(",")[0]
        return "alike"


def test_ranks_that_were_given_different_batches_are_told(ranks: Ranks) -> None:
    """With their lines on one host: `tests/errors/test_diverged.py`. Roundings do not count."""
    assert ranks(2, _given_batches, 1e-6) == ["alike"] * 2
    assert ranks(2, _given_batches, 0.5) == ["ranks were given different batches"] * 2


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x,
        lambda x: x.long(),
        lambda x: x > 6,
        lambda x: x.to(torch.complex64).conj(),
        lambda x: (x * (1 + 1j)).conj().imag,
        lambda x: x.bfloat16(),
        lambda x: x.to_sparse(),
        lambda x: x[0, 0],
        lambda x: x[:0],
        lambda x: torch.full_like(x, float("nan")),
    ],
)
def test_tensors_of_all_kinds_are_compared(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = change(torch.arange(12.0).view(3, 4))
    assert numbers(x) == numbers(x.clone())
    other = change(torch.arange(12.0).flip(0).view(3, 4))
    told = numbers(x) != numbers(other)
    assert told == (not x.is_sparse and x.numel() > 0 and not bool((x != x).any()))


LOSSES: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "weight": lambda out, own: F.cross_entropy(out, Y) * (1 + own),
    "added": lambda out, own: F.cross_entropy(out, Y) + out.new_tensor(own),
    "reduced before": lambda out, own: (1 + own) * out.cos().sum(0).sum(),
    "whole": lambda out, own: out.std() * torch.tensor([1 + own, 2])[0],
}
Y = torch.tensor([0, 1, 2, 0, 1, 2])


def _losses(rank: Rank, own: float, began: bool) -> list[str]:
    torch.manual_seed(0)
    model, x = torch.nn.Linear(4, 3), torch.randn(6, 4)
    said: list[str] = []
    with rank.session() as session:
        session.context.compares = began
        for loss in LOSSES.values():
            for way in (torch.Tensor.backward, lambda loss: torch.autograd.grad(loss, [model.weight])):
                try:
                    way(loss(model(x), own * rank.rank))
                    said.append("alike")
                except RondeError as error:
                    said.append(str(error).split(",")[0])
    return said


@pytest.mark.parametrize(("own", "began"), [(0.25, True), (0.0, True), (1e-9, True), (0.25, False)])
def test_values_of_a_loss_are_compared(ranks: Ranks, own: float, began: bool) -> None:
    """Where the script has started threads or processes; roundings do not count."""
    told = "ranks were given different values for a loss" if own == 0.25 and began else "alike"
    assert ranks(2, _losses, own, began) == [[told] * 2 * len(LOSSES)] * 2
