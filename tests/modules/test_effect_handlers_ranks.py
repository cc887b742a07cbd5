"""Pyro's handlers see each call of a model once, on the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from codes import without_codes
from ronde.modules.pyro_handlers import effects_refused
from ronde.rowwise.verdict import MixesRows
from ronde.testing.run_ranks import Rank

pyro: Any = pytest.importorskip("pyro")
Ranks = Callable[..., list[Any]]
_D = torch.float64


class Regression(nn.Module):
    """Samples in its forward, behind layers that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4, dtype=_D), nn.Tanh(), nn.Linear(4, 1, dtype=_D))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        bias = pyro.sample("bias", pyro.distributions.Normal(torch.zeros((), dtype=_D), 1.0))
        mean = self.layers(x).squeeze(-1) + bias
        with pyro.plate("data", len(x)):
            pyro.sample("seen", pyro.distributions.Normal(mean, 1.0), obs=y)
        return mean


def _fit() -> list[float]:
    torch.manual_seed(0)
    model, x = Regression(), torch.randn(7, 3, dtype=_D)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    found: list[float] = []
    for _ in range(3):
        trace = pyro.poutine.trace(model).get_trace(x, x.sum(1))
        loss = -trace.log_prob_sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found += [loss.item(), trace.nodes["bias"]["value"].item()]
    return found


def _on_a_rank(rank: Rank) -> tuple[list[float], list[str], dict[str, int]]:
    with rank.session() as session:
        return _fit(), without_codes(session.notes), dict(session.tally.sharded)


def test_a_model_that_samples_is_recorded_once(ranks: Ranks) -> None:
    expected = _fit()
    for found, notes, sharded in ranks(2, _on_a_rank):
        assert found == pytest.approx(expected, rel=1e-11)
        assert [note for note in notes if note.startswith("Regression runs in parts")] == [
            (
                "Regression runs in parts, not as one piece: it samples by Pyro, whose handlers must see "
                "the whole batch once"
            )
        ]
        assert set(sharded) == {"Sequential"}


def _guided(rank: Rank) -> list[str]:
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal

    with rank.session() as session:
        torch.manual_seed(0)
        pyro.clear_param_store()
        model, x = Regression(), torch.randn(7, 3, dtype=_D)
        guide = AutoNormal(pyro.poutine.block(model, hide=["seen"]))
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
        for _ in range(3):
            svi.step(x, x.sum(1))
        return [note for note in without_codes(session.notes) if note.startswith("AutoNormal")]


def test_a_guide_is_not_told_of_its_trial_before_it_had_set_itself_up(ranks: Ranks) -> None:
    said = (
        "AutoNormal runs in parts, not as one piece: it samples by Pyro, whose handlers must see the whole "
        "batch once"
    )
    assert ranks(2, _guided) == [[said]] * 2


def test_without_a_handler_nothing_is_refused() -> None:
    with effects_refused():
        pyro.sample("alone", pyro.distributions.Normal(0.0, 1.0))


def test_handlers_are_back_afterwards() -> None:
    with pyro.poutine.trace() as trace:
        with pytest.raises(MixesRows, match="it samples by Pyro"), effects_refused():
            pyro.sample("inside", pyro.distributions.Normal(0.0, 1.0))
        pyro.sample("behind", pyro.distributions.Normal(0.0, 1.0))
    assert "inside" not in trace.trace.nodes
    assert "behind" in trace.trace.nodes
