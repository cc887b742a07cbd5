"""On ranks each kind of memory has the bytes of its formula: gradients and buckets are not counted twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ronde.runtime.memory.process import allocated
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]
WIDTH, LAYERS, ROWS = 256, 4, 512


def _train(rank: Rank, plan: str, accumulated: int, set_to_none: bool) -> dict[str, Any]:
    with rank.session(plan) as session:
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)]
        model = nn.Sequential(*layers)
        optimizer = torch.optim.Adam(model.parameters())
        inputs = torch.randn(ROWS, WIDTH)
        for _ in range(4):
            for _ in range(accumulated):
                loss = model(inputs).square().mean()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
        memory = session.memory.memory()
        return {**memory.peaks, "total": memory.total}


@pytest.mark.parametrize(
    ("plan", "share", "accumulated", "set_to_none"),
    [("ddp", 1, 1, True), ("ddp", 1, 2, False), ("zero1", 2, 1, True)],
)
def test_bytes_by_kind(ranks: Ranks, plan: str, share: int, accumulated: int, set_to_none: bool) -> None:
    whole = 4 * LAYERS * (WIDTH * WIDTH + WIDTH)
    rows = 4 * (ROWS // 2) * WIDTH
    for peaks in ranks(2, _train, plan, accumulated, set_to_none):
        assert peaks["parameters"] == whole
        assert peaks["gradients"] == whole
        assert 2 * whole / share <= peaks["optimizer"] <= 1.02 * 2 * whole / share
        # In the midst of backward a gradient is in the bucket and where autograd has put it.
        assert whole < peaks["buckets"] < 1.01 * whole
        if allocated(on_cuda=False) is not None:
            # What each ReLU gives, this rank's rows of the batch, and the squares.
            assert LAYERS * rows <= peaks["activations"] <= (LAYERS + 4) * rows
        assert peaks["total"] > sum(peaks[kind] for kind in ("parameters", "gradients", "optimizer"))


def _trains_deep(rank: Rank, plan: str) -> int | None:
    """Peak of activations of four blocks of four layers."""
    with rank.session(plan) as session:
        torch.manual_seed(0)
        pairs = [
            [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())] for _ in range(4)
        ]
        model = nn.Sequential(*(nn.Sequential(*each) for each in pairs))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs = torch.randn(ROWS, WIDTH)
        for _ in range(4):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        return session.memory.memory().peaks.get("activations")


@pytest.mark.parametrize(
    ("plan", "fewest", "most"),
    [
        ("ddp", 16, 20),
        # The arguments of four blocks, and of one block what its layers give.
        ("recompute=full", 4 + 4, 12),
        # The sums of gradients, of one piece what all layers give, and the output of all pieces.
        ("micro-batches=4", 16 + 16 / 4, 16 + 9),
    ],
)
def test_what_is_computed_again_is_counted(ranks: Ranks, plan: str, fewest: float, most: float) -> None:
    if allocated(on_cuda=False) is None:
        pytest.skip("this C library does not tell what is allocated")
    rows = 4 * (ROWS // 2) * WIDTH
    for activations in ranks(2, _trains_deep, plan):
        assert fewest * rows <= activations <= most * rows


def _keeps_gradients(rank: Rank) -> dict[str, int]:
    with rank.session("ddp") as session:
        model = nn.Linear(WIDTH, WIDTH, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept = []
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(8, WIDTH)).sum().backward()
            kept.append(model.weight.grad)
            optimizer.step()
        return dict(session.memory.memory().peaks)


def test_a_gradient_outside_its_bucket_counts_beside_it(ranks: Ranks) -> None:
    """The script keeps old gradients, which lie in the bucket: the new one has memory of its own."""
    whole = 4 * WIDTH * WIDTH
    for peaks in ranks(2, _keeps_gradients):
        assert whole <= peaks["gradients"] <= whole + 64
        assert whole <= peaks["buckets"] <= whole + 64
