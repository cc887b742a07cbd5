"""In a step that reads nothing, ronde reads control messages only: on a device no step waits for the host."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from host_reads import host_reads
from ronde.comm import wire_format
from ronde.tensor.rules import losses
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]
# In host memory on every device: votes (tests/comm/test_by_device.py), and the state of the host's generator.
ON_HOST = {"comm/process_group.py:votes", "modules/sharded_call.py:__exit__"}
# Which gradients were computed: a bucket that is cut asks as one votes.
OF_CUT_BUCKETS = {"sync/bucket.py:_computed_somewhere"}
# Calls 1, 2, 4, 8, 16 compare what a model does with the first; these are between two of them.
WARM_UP, STEPS = 9, 4


def train(rank: Rank, plan: str) -> collections.Counter[str]:
    # Targets of a loss lie on a device where there is one.
    on_device = mock.patch.object(losses, "is_on_accelerator", return_value=True)
    with rank.session(plan), on_device:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        data = torch.utils.data.TensorDataset(torch.randn(104, 8), torch.randint(0, 4, (104,)))
        found: collections.Counter[str] = collections.Counter()
        for number, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=8)):
            if not WARM_UP <= number < WARM_UP + STEPS:
                step(model, optimizer, x, y)
                continue
            with host_reads() as counts:
                step(model, optimizer, x, y)
            found += counts
        return found


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("plan", ["ddp", "zero1", "zero2", "zero3", "precision=bf16", "zero3,recompute=full"])
def test_a_step_reads_no_tensor(ranks: Ranks, plan: str) -> None:
    allowed = ON_HOST | OF_CUT_BUCKETS if plan.startswith(("zero2", "zero3")) else ON_HOST
    for counts in ranks(2, train, plan):
        assert set(counts) <= allowed, counts


ASKS = """
def ask(tensor):
    return tensor.item()
"""


def test_a_read_is_found_where_ronde_asks_for_it() -> None:
    ours: dict[str, Any] = {}
    exec(compile(ASKS, wire_format.__file__, "exec"), ours)
    with host_reads() as counts:
        torch.ones(1).item()  # a script's own
        ours["ask"](torch.ones(1))
    assert counts == {"comm/wire_format.py:ask": 1}
