"""What an observed call asks of other ranks: draws, votes, batch norms."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from ronde.rng.draws import Draw, SlicedDraws
from ronde.rowwise.observe import Observation
from ronde.tensor.layout import Layout
from rowwise.one_rank import OneRank, observe
from rowwise.rowwise_cases import Written, attention_with_dropout, linear, series, table


@dataclasses.dataclass
class Sliced(OneRank):
    """Draws as one device would."""

    rank: int = 0

    def draw(self, func: Any, args: Any, kwargs: Any, draw: Draw) -> Any:
        with SlicedDraws([draw], Layout(0, self.rows, self.rows // self.mine), self.rank):
            return func(*args, **kwargs)


def reparametrized(self: Any, x: torch.Tensor) -> torch.Tensor:
    noise = torch.randn(x.shape[0], 6) + torch.rand(x.size(0), 1).expand(-1, 6)
    return self.layer(x) + noise + torch.randint(0, 5, (len(x), 6)) + torch.rand(6)


DRAWING = {
    "dropout": lambda: (nn.Sequential(linear(), nn.Dropout(0.3), nn.Dropout1d(0.2)), torch.randn(12, 5, 6)),
    "attention": lambda: (Written(attention_with_dropout, layer=linear(6, 18)), torch.randn(12, 5, 6)),
    "noise": lambda: (Written(reparametrized, layer=linear()), torch.randn(12, 6)),
    "bernoulli": lambda: (Written(lambda self, x: torch.bernoulli(x.sigmoid())), torch.randn(12, 6)),
    "choice": lambda: (Written(lambda self, x: x.softmax(-1).multinomial(2)), torch.randn(12, 6)),
    "joined": lambda: (
        Written(lambda self, x: torch.dropout(x.flatten(0, 1), 0.4, True).view_as(x)),
        torch.randn(12, 5, 6),
    ),
    "encoder": lambda: (nn.TransformerEncoderLayer(6, 2, 8, 0.2, batch_first=True), torch.randn(12, 5, 6)),
}


@pytest.mark.parametrize("name", DRAWING)
def test_draws_are_those_of_one_device(name: str) -> None:
    torch.manual_seed(0)
    module, batch = DRAWING[name]()
    torch.manual_seed(1)
    expected = module(batch)
    state = torch.get_rng_state()
    for rank in range(3):
        rows = batch[4 * rank : 4 * rank + 4].clone()
        ranks = Sliced(12, 4, rank=rank)
        torch.manual_seed(1)
        output, verdict, _ = Observation(module, ((rows,), {}), [0], ranks).run(
            lambda rows=rows: module(rows)
        )
        assert verdict.sharded, verdict.reason
        assert verdict.draws
        torch.testing.assert_close(output, expected[4 * rank : 4 * rank + 4])
        assert torch.equal(state, torch.get_rng_state())


def test_ranks_vote_before_they_meet() -> None:
    module = nn.Sequential(linear(), nn.BatchNorm1d(6), nn.ReLU(), nn.BatchNorm1d(6))
    observed = observe(module, (table(),))
    assert observed.verdict.joint
    assert observed.ranks.votes == ["", "", ""]


@pytest.mark.parametrize("vote", [0, 1, 2])
def test_a_problem_elsewhere_ends_the_call_here(vote: int) -> None:
    module = nn.Sequential(linear(), nn.BatchNorm1d(6), nn.ReLU(), nn.BatchNorm1d(6))
    before = {key: value.clone() for key, value in module.state_dict().items()}
    observed = observe(module, (table(),), elsewhere={vote: "it mixes rows there"})
    assert observed.verdict.reason == "it mixes rows there"
    assert len(observed.ranks.votes) == vote + 1  # nobody is asked again
    assert observed.output is None
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())


def test_a_problem_here_is_told() -> None:
    observed = observe(Written(lambda self, x: x - x.mean(0)), (table(),))
    assert observed.ranks.votes == [observed.verdict.reason]


class Normalized(torch.autograd.Function):
    """Stands for a batch norm with statistics of all ranks."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, running: tuple[torch.Tensor]
    ) -> torch.Tensor:
        running[0].data.lerp_(x.mean(0), 0.1)
        ctx.save_for_backward(x, weight)
        return (x - x.mean(0)) * weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], gradients[0].sum(0), None


class Joined(OneRank):
    def normalizes(self, func: Any) -> bool:
        return func is Normalized

    def looks_up(self, func: Any) -> bool:
        return False

    def catches(self) -> bool:
        return False


def test_a_function_that_joins_rows_on_purpose() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return Normalized.apply(self.layer(x), self.weight, (self.running,)).relu()

    module = Written(forward, layer=linear(), weight=nn.Parameter(torch.ones(6)), running=torch.zeros(6))
    x = table()
    output, verdict, _ = Observation(module, ((x,), {}), [0], Joined(32, 8)).run(lambda: module(x))
    assert verdict.sharded, verdict.reason
    assert verdict.joint
    assert output.requires_grad
    assert module.running.abs().sum() > 0
    torch_norm = nn.BatchNorm1d(6)
    verdict = Observation(torch_norm, ((x,), {}), [0], Joined(32, 8)).run(lambda: torch_norm(x))[1]
    assert not verdict.sharded  # which has statistics of these rows only


def test_a_norm_of_weights_joins_nothing() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x @ nn.functional.batch_norm(self.layer.weight, None, None, training=True)

    verdict = observe(Written(forward, layer=linear()), (table(),)).verdict
    assert verdict.sharded, verdict.reason
    assert (verdict.joint, verdict.batchless) == (False, True)


def test_leaves_of_others_are_told_of() -> None:
    scale = torch.ones(6, requires_grad=True)
    assert observe(Written(lambda self, x: x * scale), (table(),)).verdict.foreign
    computed = scale * 2
    verdict = observe(Written(lambda self, x: x * computed), (table(),)).verdict
    assert verdict.reason == "it uses a value with a gradient that was computed outside of it [R348]"


def test_outputs_are_described() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        made = self.layer(x)
        return {
            "rows": made,
            "flat": made.flatten(0, 1),
            "steps first": made.transpose(0, 1).flatten(0, 1).clone(),
            "given": x,
            "weight": self.layer.weight.detach().clone(),
            "name": "it",
        }

    verdict = observe(Written(forward, layer=linear()), (series(),)).verdict
    assert verdict.sharded, verdict.reason
    assert [axis.dim for axis in verdict.outputs] == [0, 0, 0, 0, None, None]
    assert [axis.outer_first for axis in verdict.outputs] == [False, False, True, False, False, False]
    assert [axis.dims for axis in verdict.outputs] == [3, 2, 2, 3, 2, None]
    assert verdict.same_as == (None, None, None, 0, None, None)
    verdict = observe(Written(lambda self, x: x[:, :2]), (table(),)).verdict
    assert verdict.reason == "it returns a view of its argument, which shares memory with it [R344]"
