"""The first calls, which every rank makes on a whole model, hold no more of it than later ones but a unit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import ronde
from parallel.cut_models import MODELS, D, Ranks, batch, called, compare
from parallel.test_experts_ranks import Fused, Listed, Model
from peak_bytes import PhasePeaks
from ronde.comm.process_group import Comm
from ronde.runtime import api
from ronde.testing.run_ranks import Rank

WIDTH, BLOCKS = 512, 4
WEIGHT = 4 * WIDTH * WIDTH
UNIT = 2  # weights of a block
WEIGHTS = UNIT * BLOCKS
STEPS = 4
# Activations, and what is said about ranks.
REST = WEIGHT // 2


class Block(nn.Module):
    """Two matrices, of which each rank of a tensor group has a half."""

    def __init__(self) -> None:
        super().__init__()
        self.up_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.down_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down_proj(torch.relu(self.up_proj(x)))


NETS: dict[str, Callable[[], nn.Module]] = {
    "blocks": lambda: nn.Sequential(*(Block() for _ in range(BLOCKS))),
    # An expert has as many elements as a weight.
    "experts": lambda: nn.Sequential(nn.Linear(WIDTH // 2, WIDTH // 2), Listed(WIDTH // 2, WEIGHTS)),
}


def trained(peaks: PhasePeaks, deferred: bool, name: str) -> list[torch.Tensor]:
    """Losses and weights."""
    torch.manual_seed(4)
    told: list[torch.Tensor] = []
    with peaks.phase("build"), ronde.deferred() if deferred else nullcontext():
        net = NETS[name]()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(1, STEPS + 1):
        x = torch.randn(8, WIDTH if name == "blocks" else WIDTH // 2)
        with peaks.phase(f"forward {step}"):
            loss = (net(x) - x).square().mean()
        with peaks.phase(f"backward {step}"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        told.append(torch.tensor(loss.item()))
    return told + [each.detach().clone() for each in net.parameters()]


def measured(
    rank: Rank, plan: str, deferred: bool = False, name: str = "blocks"
) -> tuple[list[torch.Tensor], dict[str, float]]:
    """What the script reads, and the most weights that were there in each phase."""
    apart = mock.patch.object(Comm, "shares_host", False)  # nothing is mapped
    with apart, rank.session(plan) as session, mock.patch.object(api._Process, "session", session):
        with PhasePeaks() as peaks:
            told = trained(peaks, deferred, name)
        return told, {name: (most - REST) / WEIGHT for name, most in peaks.most().items()}


def alike(
    ranks: Callable[..., list[Any]], plan: str, deferred: bool = False, name: str = "blocks"
) -> list[dict[str, float]]:
    """Peaks by rank; the numbers are those of one device."""
    wanted = trained(PhasePeaks(), False, name)
    found = ranks(measured, plan, deferred, name)
    for told, _ in found:
        for got, want in zip(told, wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    return [peaks for _, peaks in found]


# By plan the parts of a model that a rank keeps: weights, and gradients in memory of the allocator's.
KEPT = {
    "data=2,tensor=2,bucket-mb=1": (1 / 2, 1 / 2),
    "data=2,tensor=2,zero2,bucket-mb=1": (1 / 2, 0.0),
    "data=2,tensor=2,zero3,bucket-mb=1": (1 / 4, 0.0),
}


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(plan, marks=() if "zero3" in plan else pytest.mark.soak)  # the daily sample
        for plan in KEPT
    ],
)
def test_a_whole_backward_keeps_blocks_of_gradients(four: Ranks, plan: str) -> None:
    weights, gradients = (WEIGHTS * part for part in KEPT[plan])
    for peaks in alike(four, plan):
        # While a model is divided: what the script has built, and a unit's parts.
        assert peaks["forward 1"] <= WEIGHTS + UNIT
        for step in range(1, STEPS + 1):
            # The unit in use and the next, their gradient, and two buckets of blocks.
            assert peaks[f"backward {step}"] <= weights + gradients + UNIT + 1 + 2, (plan, step)


@pytest.mark.parametrize("deferred", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_the_backward_of_all_experts_keeps_those_of_a_rank(two: Ranks, deferred: bool) -> None:
    for peaks in alike(two, "expert=2", deferred, "experts"):
        assert peaks["build"] <= (WEIGHTS / 2 + 2 if deferred else WEIGHTS)
        # Two experts in use, a gradient, and two buckets.
        assert peaks["backward 1"] <= WEIGHTS / 2 + 2 + 1 + 2


def in_one_backward(kind: type[nn.Module], chosen: int) -> list[torch.Tensor]:
    """The call that is tried and one that is spread, in one backward."""
    torch.manual_seed(1)
    model = Model(kind, chosen=chosen).to(D) if kind is Listed else Model(kind).to(D)
    draw = torch.Generator().manual_seed(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    told: list[torch.Tensor] = []
    for step in range(4):
        several = [model(torch.randint(0, 12, (6, 2), generator=draw))[0].pow(2).mean() for _ in range(2)]
        optimizer.zero_grad()
        if step == 0:
            torch.stack(several).sum().backward()
        else:
            for each in several:
                each.backward()
        optimizer.step()
        told.append(torch.stack(several).detach().clone())
    return told + [value.clone() for value in model.state_dict().values()]


@pytest.mark.parametrize(
    ("kind", "chosen"), [(Listed, 1), pytest.param(Listed, 2, marks=pytest.mark.soak), (Fused, 2)]
)
def test_gradients_of_tried_and_spread_calls_are_added_up(
    two: Ranks, kind: type[nn.Module], chosen: int
) -> None:
    compare(two, "expert=2", in_one_backward, kind, chosen)


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["data=4,expert=2", "data=4,expert=2,zero2"])
def test_so_are_those_of_replicas(four: Ranks, plan: str) -> None:
    compare(four, plan, in_one_backward, Listed, 1)


@pytest.mark.parametrize("plan", ["zero3", pytest.param("pipeline=2", marks=pytest.mark.soak)])
def test_a_model_shrinks_while_it_is_divided(two: Ranks, plan: str) -> None:
    for peaks in alike(two, plan):
        assert peaks["forward 1"] <= WEIGHTS + UNIT


@pytest.mark.parametrize(
    ("plan", "kept"),
    [
        ("data=2,pipeline=2,zero2", 1 / 2),
        pytest.param("data=2,tensor=2,zero3", 1 / 4, marks=pytest.mark.soak),
        pytest.param("tensor=2,pipeline=2", 1 / 4, marks=pytest.mark.soak),
        pytest.param("data=2,context=2,zero3", 1 / 4, marks=pytest.mark.soak),
    ],
)
def test_a_model_that_is_cut_as_it_is_built_is_never_whole(four: Ranks, plan: str, kept: float) -> None:
    for peaks in alike(four, plan, True):
        assert peaks["build"] <= WEIGHTS / 4 + UNIT
        # A unit in use and one on its way, in the order of a cut before it is in its own.
        assert peaks["forward 1"] <= WEIGHTS * kept + 2 * UNIT + 3


def by_turns(name: str) -> list[torch.Tensor]:
    """Two calls in a step, of which one is compared, then accumulation, with a gradient read between."""
    torch.manual_seed(1)
    model = MODELS[name]().to(D)
    draw = torch.Generator().manual_seed(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    told: list[torch.Tensor] = []
    for step in range(6):
        optimizer.zero_grad()
        first, second = (called(name, model, batch(name, draw)) for _ in range(2))
        if step % 2:
            (first + second).backward()
        else:
            first.backward()
            told.append(next(each.grad for each in model.parameters() if each.dim() > 1).clone())
            second.backward()
        optimizer.step()
        told.append((first + second).detach().clone())
    return told + [value.clone() for value in model.state_dict().values()]


@pytest.mark.parametrize(
    "plan",
    [
        "data=2,tensor=2,zero2",
        *(
            pytest.param(f"data=2,tensor=2{more}", marks=pytest.mark.soak)
            for more in ("", ",zero1", ",zero3", ",recompute=full")
        ),
    ],
)
def test_gradients_of_whole_and_cut_calls_are_added_up(four: Ranks, plan: str) -> None:
    compare(four, plan, by_turns, "language")
    compare(four, plan, by_turns, "untied")
