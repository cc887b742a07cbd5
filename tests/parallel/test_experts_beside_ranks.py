"""Experts beside sequences and stages: each rank has its own tokens, and mixtures of its own stage."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from parallel.cut_models import Ranks, compare
from parallel.test_experts_ranks import Fused, Listed, train
from ronde.tensor.context import Region
from ronde.testing.run_ranks import Rank


class Summed(Listed):
    """What it makes of a token depends on all of its sequence."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + x.mean(1, keepdim=True))


class Attending(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        # Without a bias: a key's has no gradient but rounding, which Adam makes a step of.
        self.qkv = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(3))
        self.mixture, self.head = kind(), nn.Linear(8, 12)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        q, k, v = (each(x).unsqueeze(1) for each in self.qkv)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
        return self.head(x + self.mixture(x))


class Plain(nn.Module):
    """Attends nowhere, so sequences are whole."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.embed, self.first, self.second = nn.Embedding(12, 8), kind(), kind()
        self.head = nn.Linear(8, 12)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = x + self.first(x)
        return self.head(x + self.second(x))


def trained(model: type[nn.Module], kind: type[nn.Module], rows: int = 6) -> list[torch.Tensor]:
    def loss_of(net: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(net(ids).flatten(0, 1), ids.flatten())

    return train(lambda: model(kind), loss_of, rows)


@pytest.mark.parametrize("model", [Attending, Plain])
@pytest.mark.parametrize("kind", [Listed, Fused])
def test_experts_are_spread_over_ranks_of_a_sequence(
    two: Ranks, model: type[nn.Module], kind: type[nn.Module]
) -> None:
    compare(two, "context=2,expert=2", trained, model, kind)


@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        ("pipeline=2,expert=2", Fused),
        pytest.param("pipeline=2,expert=2", Listed, marks=pytest.mark.soak),
        pytest.param("pipeline=2,context=2,expert=2,zero2", Fused, marks=pytest.mark.soak),
        pytest.param("data=2,context=2,expert=4,zero3", Fused, marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("model", [Attending, pytest.param(Plain, marks=pytest.mark.soak)])
def test_experts_are_spread_within_stages(
    four: Ranks, plan: str, kind: type[nn.Module], model: type[nn.Module]
) -> None:
    compare(four, plan, trained, model, kind)


def failing(rank: Rank, plan: str, ranks: tuple[int, ...]) -> list[torch.Tensor]:
    """Train a model with observed calls that fail between its mixtures, on these ranks only."""
    with rank.session(plan) as session:

        class Fails(Plain):
            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                x = self.embed(ids)
                x = x + self.first(x)
                if rank.rank in ranks and session.context.region is Region.OBSERVED:
                    raise ValueError("on some ranks")
                return self.head(x + self.second(x))

        return trained(Fails, Fused)


def test_ranks_end_a_first_call_together(two: Ranks) -> None:
    _compare_failing(two, "expert=2", (1,))


# Ranks of a data group alone, or of a stage or tensor group, which have the same rows as others that go on.
@pytest.mark.parametrize(
    ("plan", "failed"),
    [
        ("data=2,pipeline=2,expert=2", (2, 3)),
        ("data=2,pipeline=2", (2,)),
        *(
            pytest.param(plan, failed, marks=pytest.mark.soak)
            for plan, failed in (
                ("data=2,pipeline=2,expert=2", (1, 3)),
                ("data=2,pipeline=2,expert=2,zero3", (1,)),
                ("data=2,tensor=2,expert=2", (1, 3)),
                ("data=2,tensor=2,expert=2", (2, 3)),
                ("data=2,tensor=2,zero3", (1,)),
                ("data=2,context=2,zero3", (1,)),
                ("data=2,context=2,expert=2", (3,)),
                ("data=4,expert=2,zero3", (2, 3)),
                ("zero3", (1,)),
            )
        ),
    ],
)
def test_four_ranks_end_a_first_call_together(four: Ranks, plan: str, failed: tuple[int, ...]) -> None:
    _compare_failing(four, plan, failed)


def _compare_failing(ranks: Ranks, plan: str, failed: tuple[int, ...]) -> None:
    expected = trained(Plain, Fused)
    for found in ranks(failing, plan, failed):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def refused(rank: Rank, plan: str) -> str:
    with rank.session(plan):
        try:
            trained(Attending, Summed)
        except Exception as error:
            return str(error)
    return ""


def test_a_mixture_that_looks_at_its_sequence_is_refused(two: Ranks) -> None:
    said: Any = two(refused, "context=2,expert=2")
    assert set(said) == {
        (
            "context=2 cuts sequences over ranks, and in Summed the output of a token depends on other "
            "tokens of its sequence; take a plan without context [R250]"
        )
    }
