"""`torch.compile` on ranks: functions of the script run eagerly and say so, models stay compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch._dynamo import trace_rules

from codes import without_codes
from ronde.testing.run_ranks import Rank

_D = torch.float64


def _train(compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    model: Any = compiled(net)

    @compiled
    def squares(rows: Any) -> Any:
        return rows.square().mean(0).sum()

    @compiled
    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y) + squares(model(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = [step(torch.randn(7, 4, dtype=_D), torch.randint(2, (7,))) for _ in range(3)]
    return [torch.stack([loss + 0 for loss in losses]), *(p.detach().clone() for p in net.parameters())]


def _on_ranks(rank: Rank) -> tuple[list[torch.Tensor], list[str], int]:
    with rank.session("ddp") as session:
        return (
            _train(torch.compile(backend="eager")),
            without_codes(session.notes),
            sum(session.tally.sharded.values()),
        )


def test_a_compiled_step_gives_the_single_device_answer(ranks: Any) -> None:
    expected = _train(lambda plain: plain)
    for found, notes, sharded in ranks(2, _on_ranks):
        assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(found, expected, strict=True))
        assert sharded == 6
        assert [note.split(" was ")[0].rpartition(".")[2] for note in notes] == ["step", "squares"]
        assert all("runs uncompiled" in note and "torch.compile(model)" in note for note in notes)


def _dropping(rank: Rank) -> list[str]:
    net = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5))
    outer = nn.Sequential(torch.compile(net, backend="eager"), nn.Linear(5, 2))
    with rank.session("ddp") as session:
        outer.eval()(torch.randn(7, 4))
        assert not session.notes
        outer.train()(torch.randn(7, 4)).sum().backward()
        outer(torch.randn(7, 4))
        assert session.tally.sharded == {"Sequential": 3}
        return without_codes(session.notes)


def test_a_compiled_model_that_draws_says_that_it_runs_uncompiled(ranks: Any) -> None:
    for notes in ranks(2, _dropping):
        (note,) = notes
        assert note.startswith("Sequential was given to torch.compile and runs uncompiled where it draws")


class _Net(nn.Module):
    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 5), middle, nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(x)).tanh())


def _results(make: Callable[[], nn.Module], compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
    """Calls in training and in evaluation: the first two of a kind are observed, and run uncompiled."""
    torch.manual_seed(0)
    net = _Net(make()).double()
    model: Any = compiled(net)
    x = torch.randn(7, 4, dtype=_D)
    for _ in range(3):
        model(x).square().sum().backward()
    model.eval()
    for _ in range(3):
        out = model(x)
    return [
        out.detach() + 0,
        *(p.grad.clone() for p in net.parameters() if p.grad is not None),
        *net.buffers(),
    ]


def _counted(rank: Rank, make: Callable[[], nn.Module]) -> tuple[list[torch.Tensor], list[str], int]:
    traced = 0

    def counting(graph: Any, _: Any) -> Any:
        nonlocal traced
        traced += 1
        return graph.forward

    with rank.session("ddp") as session:
        # These ranks have had other sessions: the compiler knows torch's functions from there.
        torch._dynamo.reset()
        trace_rules.clear_lru_cache()
        return _results(make, torch.compile(backend=counting)), without_codes(session.notes), traced


@pytest.mark.parametrize(
    ("make", "note", "traced"),
    [
        (nn.Tanh, "", 1),
        (nn.Dropout, "runs uncompiled where it draws random numbers", 1),
        (partial(nn.BatchNorm1d, 5), "runs uncompiled in training because of its batch norm", 1),
    ],
    ids=["plain", "dropout", "batch norm"],
)
def test_a_compiled_model_is_compiled_but_where_ranks_meet_in_it(
    ranks: Any, make: Callable[[], nn.Module], note: str, traced: int
) -> None:
    """In evaluation in any case, though it was observed, and called in training, before."""
    expected = _results(make, lambda plain: plain)
    for found, notes, count in ranks(2, _counted, make):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
        assert count == traced
        assert len(notes) == bool(note)
        assert all(f"_Net was given to torch.compile and {note}" in each for each in notes)
