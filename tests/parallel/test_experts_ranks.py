"""Experts of mixtures spread over ranks: the numbers of one device, whoever has which tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from codes import without_codes
from parallel.cut_models import Ranks, compare
from ronde.testing.run_ranks import Rank

D = torch.float64


class Listed(nn.Module):
    """Experts are modules; those without tokens are not called."""

    def __init__(self, width: int = 8, experts: int = 4, chosen: int = 2) -> None:
        super().__init__()
        self.gate, self.chosen = nn.Linear(width, experts, bias=False), chosen
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weights, choices = self.gate(tokens).softmax(-1).topk(self.chosen, -1)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(choices == number)
            if len(rows):
                # Weighted before too: what experts are given has a gradient of its own.
                given = tokens[rows] * (1 + weights[rows, places, None])
                out.index_add_(0, rows, expert(given) * weights[rows, places, None])
        return out.view_as(x)


class Balanced(Listed):
    """Gives a loss over all tokens too."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), self.gate(x).softmax(-1).flatten(0, -2).mean(0).pow(2).sum()


class Touched(Listed):
    """Of experts without tokens the parameters are touched, so that they have a gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        choices = self.gate(x.reshape(-1, x.shape[-1])).topk(self.chosen, -1).indices
        for number, expert in enumerate(self.experts):
            if not (choices == number).any() and self.training:
                out[0, 0] += 0 * sum(each.sum() for each in expert.parameters())
        return out


class Noted(Listed):
    """As in minimind: a loss over all tokens is kept on the module, for who adds it up."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x.reshape(-1, x.shape[-1])).softmax(-1)
        chosen = F.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)
        self.loss = (chosen.mean(0) * scores.mean(0)).sum()
        return super().forward(x)


class Emptied(Listed):
    """Experts without tokens are called on none."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weights, choices = self.gate(tokens).softmax(-1).topk(self.chosen, -1)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(choices == number)
            out.index_add_(0, rows, expert(tokens[rows]) * weights[rows, places, None])
        return out.view_as(x)


class Together(nn.Module):
    """The parameters of all experts, one behind another."""

    def __init__(self, width: int = 8, experts: int = 4) -> None:
        super().__init__()
        self.num_experts = experts
        self.up = nn.Parameter(torch.randn(experts, 2 * width, width) * 0.3)
        self.down = nn.Parameter(torch.randn(experts, width, 2 * width) * 0.3)
        self.bias = nn.Parameter(torch.randn(experts, width) * 0.1)

    def forward(self, tokens: torch.Tensor, choices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(tokens)
        for number in choices.unique().tolist():
            rows, places = torch.where(choices == number)
            made = F.linear(F.silu(F.linear(tokens[rows], self.up[number])), self.down[number])
            out.index_add_(0, rows, (made + self.bias[number]) * weights[rows, places, None])
        return out


class Fused(nn.Module):
    def __init__(self, width: int = 8, experts: int = 4) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(width, experts, bias=False), Together(width, experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weights, choices = self.gate(tokens).softmax(-1).topk(2, -1)
        return self.experts(tokens, choices, weights).view_as(x)


class Model(nn.Module):
    def __init__(self, kind: type[nn.Module], **sizes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.first, self.second = kind(**sizes), kind(**sizes)
        self.head = nn.Linear(8, 12)

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.embed(ids)
        extra: Any = 0.0
        for mixture in (self.first, self.second):
            made = mixture(x)
            made, beside = made if isinstance(made, tuple) else (made, getattr(mixture, "loss", 0.0))
            x, extra = x + made, extra + beside
        return self.head(x), extra


MODELS: dict[str, Callable[[], nn.Module]] = {
    "listed": lambda: Model(Listed),
    "fused": lambda: Model(Fused),
    "balanced": lambda: Model(Balanced),
    "touched": lambda: Model(Touched, chosen=1),
    "noted": lambda: Model(Noted, chosen=1),
    "emptied": lambda: Model(Emptied, chosen=1),
}


def train(
    make: Callable[[], nn.Module], loss_of: Callable[..., torch.Tensor], rows: int = 6
) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = make().to(D)
    draw = torch.Generator().manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    told: list[torch.Tensor] = []
    for step in range(10):
        loss = loss_of(model, torch.randint(0, 12, (rows, 3), generator=draw))
        loss.backward()
        told.append(loss.detach().clone())
        if step % 3 == 1:  # in some steps gradients are of two batches
            continue
        told.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).clone())
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        told.append(loss_of(model, torch.randint(0, 12, (rows, 3), generator=draw)).clone())
    told += [value.clone() for value in model.state_dict().values()]
    return told + [each["exp_avg"].clone() for each in optimizer.state_dict()["state"].values()]


def named(name: str, rows: int = 6) -> list[torch.Tensor]:
    def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        logits, extra = model(ids)
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten()) + 0.1 * extra

    return train(MODELS[name], loss_of, rows)


@pytest.mark.parametrize("name", ["listed", "fused", "balanced"])
def test_a_mixture_trains_as_on_one_device(two: Ranks, name: str):
    compare(two, "data=2,expert=2", named, name)


@pytest.mark.parametrize("name", ["listed", "fused", "touched", "noted", "emptied"])
def test_a_rank_may_have_no_tokens_for_an_expert(two: Ranks, name: str):
    """Of two rows with three tokens each most experts have none."""
    compare(two, "data=2,expert=2", named, name, 2)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["touched", "noted", "emptied"])
@pytest.mark.parametrize("rows", [5, 6, 30])
def test_a_mixture_sees_to_its_idle_experts(two: Ranks, name: str, rows: int):
    compare(two, "data=2,expert=2", named, name, rows)


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [4, 9])
def test_a_mixture_trains_as_on_one_device_on_four_ranks(four: Ranks, name: str, rows: int):
    compare(four, "data=4,expert=4", named, name, rows)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("listed", 6),
        *(
            pytest.param(name, rows, marks=pytest.mark.soak)
            for name in MODELS
            for rows in (2, 6)
            if (name, rows) != ("listed", 6)
        ),
    ],
)
def test_ranks_of_a_tensor_group_share_their_tokens(four: Ranks, name: str, rows: int):
    compare(four, "tensor=2,expert=2", named, name, rows)


@pytest.mark.parametrize(
    "plan",
    [
        "expert=2,zero3",
        *(pytest.param(f"expert=2,{each}", marks=pytest.mark.soak) for each in ("zero1", "zero2", "central")),
    ],
)
@pytest.mark.parametrize("name", ["listed", "fused"])
def test_state_beside_experts_is_cut(two: Ranks, name: str, plan: str):
    compare(two, plan, named, name)


@pytest.mark.parametrize(
    ("name", "plan", "rows"),
    [
        ("listed", "zero3", 2),
        *(
            pytest.param(name, plan, rows, marks=pytest.mark.soak)
            for name in MODELS
            for plan in ("ddp", "zero1", "zero2", "zero3", "central", "zero3,offload=all")
            for rows in (2, 6)
            if (name, plan, rows) != ("listed", "zero3", 2)
        ),
    ],
)
def test_state_of_experts_is_cut_over_their_replicas(four: Ranks, name: str, plan: str, rows: int):
    """Of two rows an expert has tokens on some of the ranks that have it, or on none."""
    compare(four, f"data=4,expert=2,{plan}", named, name, rows)


def train_and_hold(rank: Rank, name: str, plan: str = "expert=2") -> tuple[int, int, list[str]]:
    with rank.session(plan) as session:
        model = MODELS[name]()
        for _ in range(2):
            logits, extra = model(torch.arange(12).view(6, 2))
            (logits.sum() + extra).backward()
        blocks = session.state.blocks.blocks
        with torch._C.DisableTorchFunction():  # asked by its function, a parameter would be gathered
            whole = sum(block.parameter.tensor.nbytes for block in blocks)
        return sum(block.leaf.nbytes for block in blocks), whole, without_codes(session.strategies.notes())


@pytest.mark.parametrize("name", ["listed", "fused"])
def test_a_rank_keeps_its_experts_only(two: Ranks, name: str):
    for own, whole, notes in two(train_and_hold, name):
        assert (2 * own, notes) == (whole, [])


@pytest.mark.parametrize("name", ["listed", pytest.param("fused", marks=pytest.mark.soak)])
def test_a_rank_keeps_a_fourth_of_experts_beside_tensor(four: Ranks, name: str):
    experts = sum(each.numel() * 4 for key, each in MODELS[name]().named_parameters() if "experts" in key)
    for own, whole, notes in four(train_and_hold, name, "tensor=2,expert=2"):
        assert (own, notes) == (experts / 4 + (whole - experts) / 2, [])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("balanced", "Balanced: its output is not one row per token"),
        ("noted", "Noted: each call keeps something on it (loss)"),
    ],
)
def test_what_is_not_spread_is_said(two: Ranks, name: str, said: str):
    for _, _, notes in two(train_and_hold, name):
        assert notes == [f"expert=2 does not spread the experts of {said}"]
