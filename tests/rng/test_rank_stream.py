"""`rng=per-rank`: a stream of each rank's own, which follows from the script's seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from codes import without_codes
from ronde.rng.draws import Draw
from ronde.rng.rank_stream import RankStream
from ronde.tensor.layout import Layout
from ronde.testing.run_ranks import Rank

CPU = torch.device("cpu")
ROWS = Layout(0, 6, 2)


def stream(rank: int, notes: list[str] | None = None) -> RankStream:
    return RankStream(rank, CPU, ([] if notes is None else notes).append)


def drawn(stream: RankStream) -> list[float]:
    with stream.drawing([Draw("rand", 1, 0)], ROWS):
        return torch.rand(3).tolist()


def test_ranks_draw_apart_and_each_goes_on_where_it_was() -> None:
    torch.manual_seed(5)
    zero, one = stream(0), stream(1)
    draws = [drawn(zero), drawn(one), drawn(zero), drawn(one)]
    assert len({value for draw in draws for value in draw}) == 12


def test_the_scripts_seed_decides() -> None:
    one = stream(1)
    found = []
    for seed in (5, 6, 5):
        torch.manual_seed(seed)
        found.append(drawn(one))
    assert found[0] == found[2] != found[1]


X = torch.arange(12.0).view(6, 2)
DRAWS: dict[str, tuple[Draw, Callable[[torch.Tensor], Any]]] = {
    "rand": (Draw("rand", 2, 0), lambda x: torch.rand(len(x), 3)),
    "randn_like": (Draw("randn_like", 2, 0), torch.randn_like),
    "normal_": (Draw("normal_", 2, 0), lambda x: torch.empty_like(x).normal_()),
    "dropout": (Draw("bernoulli_", 2, 0), lambda x: nn.functional.dropout(x, 0.3)),
    "dropout in double": (Draw("bernoulli_", 2, 0), lambda x: nn.functional.dropout(x.double(), 0.3)),
    "probabilities": (Draw("bernoulli", 2, 0), lambda x: torch.bernoulli(x / 12)),
    "classes": (Draw("multinomial", 2, 0), lambda x: torch.multinomial(x + 1, 1)),
    "not of the batch": (Draw("normal_", 1, None), lambda x: torch.empty(5).normal_()),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("rank", [0, 1])
def test_the_script_goes_on_as_on_one_device(name: str, rank: int) -> None:
    draw, function = DRAWS[name]
    torch.manual_seed(5)
    function(X)
    expected = torch.rand(4)
    torch.manual_seed(5)
    with stream(rank).drawing([draw], ROWS):
        first = function(X[3 * rank : 3 * rank + 3])
    assert torch.equal(torch.rand(4), expected)
    torch.manual_seed(5)
    with stream(1 - rank).drawing([draw], ROWS):
        other = function(X[3 * rank : 3 * rank + 3])
    assert name == "classes" or not torch.equal(first, other)


def test_a_draw_that_no_observed_call_saw_is_told() -> None:
    notes: list[str] = []
    with stream(0, notes).drawing([Draw("rand", 1, 0)], ROWS):
        assert torch.randint(0, 9, (2, 3)).shape == (2, 3)
    (note,) = notes
    assert note.startswith("a model drew randint, which it did not in its first call: with rng=per-rank")


class _Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.1 * torch.randn_like(x)
        hidden = torch.utils.checkpoint.checkpoint(self._hidden, x, use_reentrant=False)
        return self.b(hidden)

    def _hidden(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.a(x).relu())


def _script() -> tuple[list[Any], list[torch.Tensor]]:
    """Three epochs in an order that the generator draws which the model draws from, too."""
    torch.manual_seed(3)
    model = _Noisy()
    data = TensorDataset(torch.randn(14, 4), torch.arange(14))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    order: list[Any] = []
    for _ in range(3):
        for x, place in DataLoader(data, 5, shuffle=True):
            order.append(place.tolist())
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [*order, torch.get_rng_state().tolist()], [value.detach() for value in model.parameters()]


def _orders(rank: Rank) -> list[str]:
    expected, alone = _script()
    with rank.session(plan="rng=per-rank") as session:
        found, weights = _script()
        notes = without_codes(session.notes)
        cut = session.tally.sharded
    problems = [f"batch {i}" for i, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b]
    if notes or not cut:
        problems.append(f"{notes} {cut}")
    if all(torch.equal(a, b) for a, b in zip(alone, weights, strict=True)):
        problems.append("the draws are those of one device")
    return problems


def test_the_order_of_samples_is_that_of_one_device(ranks: Any) -> None:
    assert ranks(2, _orders) == [[], []]
