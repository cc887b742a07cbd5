"""Ranks that put other values into a loss, by their own threads or processes, are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ronde.errors import RondeError
from ronde.tensor.script_values import ScriptValues
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]
T = torch.Tensor
Y = torch.tensor([0, 1, 2, 0, 1, 2])


def _grad(loss: T, model: torch.nn.Module) -> None:
    torch.autograd.grad(loss, list(model.parameters()))


def _many(out: T, own: float) -> T:
    """More than are told apart."""
    for _ in range(100):
        out = out * 1.0
    return F.cross_entropy(out * (1 + own), Y)


# What makes a loss of a model's output and a number of this rank's own.
LOSSES: dict[str, Callable[[T, float], Any]] = {
    "weight of a loss": lambda out, own: F.cross_entropy(out, Y) * (1 + own),
    "weight before it": lambda out, own: F.cross_entropy(out, Y) + (1 + own) * out.pow(2).mean(),
    "added": lambda out, own: F.cross_entropy(out, Y) + out.new_tensor(own),
    "reduced before": lambda out, own: (1 + own) * out.cos().sum(0).sum(),
    "stacked": lambda out, own: (torch.stack([out.mean(), out.std()]) * torch.tensor([1 + own, 2])).sum(),
    "targets": lambda out, own: F.mse_loss(out, torch.full((6, 3), own)),
    "labels": lambda out, own: F.cross_entropy(out, (Y + int(own > 0)) % 3),
    "a mask": lambda out, own: out[torch.arange(6) > own].pow(2).mean() if own else out[Y >= 0].mean(),
    "a place": lambda out, own: F.cross_entropy(out[int(own > 0) :], Y[int(own > 0) :]),
    "of numpy": lambda out, own: F.cross_entropy(out * np.float32(1 + own), Y),
    "one of many": _many,
    "slightly other": lambda out, own: F.cross_entropy(out, Y) * (1 + own / 1000),
}


def _told(rank: Rank, own: float, began: bool, names: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    torch.manual_seed(0)
    model, x = torch.nn.Linear(4, 3), torch.randn(6, 4)
    with rank.session() as session:
        session.context.script_values.watched = began
        for name in names:
            for way in (torch.Tensor.backward, lambda loss: _grad(loss, model)):
                try:
                    way(LOSSES[name](model(x), own * rank.rank))
                    said = "alike"
                except RondeError as error:
                    said = str(error).split(",")[0]
                session.context.script_values.clear()
                assert found.setdefault(name, said) == said
    return found


TOLD = "ranks were given different values for a loss"


def test_values_of_each_ranks_own_are_told(ranks: Ranks) -> None:
    expected = dict.fromkeys(LOSSES, TOLD)
    assert ranks(2, _told, 0.25, True, tuple(LOSSES)) == [expected] * 2


@pytest.mark.parametrize(("own", "began"), [(0.0, True), (1e-9, True), (0.25, False)])
def test_the_same_values_and_roundings_are_not(ranks: Ranks, own: float, began: bool) -> None:
    """Nor anything where the script has started no threads or processes."""
    whole = {"labels", "a mask", "a place"} if own else set()
    names = tuple(name for name in LOSSES if name not in whole)
    assert ranks(2, _told, own, began, names) == [dict.fromkeys(names, "alike")] * 2


def _masked(out: T) -> T:
    """The largest numbers that there are, again and again."""
    for _ in range(100):
        out = out.masked_fill(torch.zeros(3, dtype=torch.bool), torch.finfo(torch.float64).min)
    return F.cross_entropy(out, Y) * torch.tensor(torch.finfo(torch.float64).max, dtype=torch.float64) * 0


def _masks(rank: Rank) -> bool:
    torch.manual_seed(0)
    model, x = torch.nn.Linear(4, 3).double(), torch.randn(6, 4).double()
    with rank.session() as session:
        session.context.script_values.watched = True
        _masked(model(x)).backward()
    return True


def test_the_largest_numbers_are_the_same_on_all_ranks(ranks: Ranks) -> None:
    assert ranks(2, _masks) == [True] * 2


def _filled(out: T, own: float) -> T:
    """Results are put where nobody has written yet."""
    place, other, total = (torch.full((6, 3), own) for _ in range(3))
    place[:3] = out.detach()[:3]
    torch.add(out.detach(), 1, out=other)
    total[0] = F.cross_entropy(out, Y).detach()
    total[1].copy_(out.detach()[0])
    return F.cross_entropy(out, Y) + (place[:3].sum() + other.sum() + total[:2].sum()) * 0


def _fills(rank: Rank) -> bool:
    torch.manual_seed(0)
    model, x = torch.nn.Linear(4, 3), torch.randn(6, 4)
    with rank.session() as session:
        session.context.script_values.watched = True
        _filled(model(x), 0.5 + rank.rank).backward()
    return True


def test_what_results_are_written_to_is_no_value_of_the_scripts(ranks: Ranks) -> None:
    assert ranks(2, _fills) == [True] * 2


def _steps(rank: Rank) -> tuple[list[str], int]:
    """Backward twice, evaluation, a gradient that is given, and one that is another on each rank."""
    torch.manual_seed(0)
    model, x = torch.nn.Linear(4, 3), torch.randn(6, 4)
    said: list[str] = []
    with rank.session() as session:
        session.context.script_values.watched = True
        values = session.context.script_values
        loss = F.cross_entropy(model(x), Y) * 0.5
        loss.backward(retain_graph=True)
        loss.backward()
        with torch.no_grad():
            for _ in range(200):
                (model(x).argmax(1) == Y).sum().item()
        length = len(values.rows())
        model(x).backward(torch.ones(6, 3))
        for gradient in (torch.ones(6, 3), torch.ones(6, 3) + rank.rank):
            try:
                model(x).backward(gradient)
                said.append("alike")
            except RondeError as error:
                said.append(str(error).split(",")[0])
    return said, length


def test_values_are_compared_at_each_backward(ranks: Ranks) -> None:
    length = len(ScriptValues().rows())
    assert ranks(2, _steps) == [(["alike", TOLD], length)] * 2


def test_words_for_what_differs() -> None:
    first, second = ScriptValues(), ScriptValues()
    first.note((torch.zeros(3), 0.5, [1, slice(None)], None, "mean", torch.ones(2, requires_grad=True)))
    second.note((torch.zeros(3), 0.75, [2, slice(None)], {"dim": 1}))
    same, other, *_, whole = zip(first.rows(), second.rows(), strict=True)
    assert same[0] == same[1]
    assert other[0] != other[1]
    assert whole[0] != whole[1]
    assert first.shown(0) == second.shown(0)
    assert first.shown(0).startswith("float32 [3] (digest ")
    assert (first.shown(1)[:4], second.shown(1)[:4]) == ("0.5 ", "0.75")
    last = len(first.rows()) - 1
    assert first.shown(last) != second.shown(last)
