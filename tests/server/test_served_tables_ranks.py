"""`EmbeddingTable` of several ranks on servers, with a script's own optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ronde
from ronde.testing.run_ranks import Rank


def train(steps: int = 4) -> tuple[list[float], dict[str, torch.Tensor]]:
    table = ronde.EmbeddingTable(3, optimizer=ronde.table.Adagrad(lr=0.5), dtype=torch.float64)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    losses: list[float] = []
    for step in range(steps):
        ids = torch.arange(12) * (step + 1) % 7
        loss = (table(ids) - 1).square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, table.get_extra_state()


def on_servers(rank: Rank, plan: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    with rank.session(plan):
        return train()


@pytest.mark.parametrize("plan", ["hybrid,servers=2", pytest.param("ps,servers=2", marks=pytest.mark.soak)])
def test_ranks_train_a_table_of_servers_as_one_device_does(
    plan: str, ranks: Callable[..., list[Any]]
) -> None:
    losses, rows = train()
    for found, state in ranks(2, on_servers, plan):
        assert found == pytest.approx(losses, rel=1e-12)
        for name, value in rows.items():
            torch.testing.assert_close(state[name], value, rtol=1e-12, atol=0)


def test_look_ups_that_may_lack_pushes_train_too(ranks: Callable[..., list[Any]]) -> None:
    losses, rows = train()
    for found, state in ranks(2, on_servers, "hybrid,servers=2,update=bounded,staleness=2"):
        assert found[0] == pytest.approx(losses[0], rel=1e-12)
        assert found[-1] < losses[0]
        # All pushes arrive.
        assert state["steps"] == rows["steps"]
        torch.testing.assert_close(state["counts"], rows["counts"])
