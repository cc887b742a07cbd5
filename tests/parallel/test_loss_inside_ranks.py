"""Models that compute their loss go through a pipeline in micro-batches, in a loop of the script's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from codes import without_codes
from parallel.cut_models import D, Ranks
from parallel.test_step_ranks import ALL_FORWARD, BY_TURNS, IGNORED, Block, saying
from ronde.sync.parameter_name import parameter_name
from ronde.testing.run_ranks import Rank


class Language(nn.Module):
    """As nanoGPT: embeddings, blocks, a tied head; the logits and the loss."""

    def __init__(self, *, mixes: bool = False) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(20, 16), nn.Embedding(6, 16)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embed.weight
        self.mixes = mixes

    def forward(self, ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        x = self.drop(self.embed(ids) + self.positions(torch.arange(ids.shape[1])))
        for block in self.blocks:
            x = block(x)
        if self.mixes:
            x = x - x.mean(0)
        logits = self.head(x)
        if labels is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


class Contrastive(Language):
    """Its loss compares rows with one another."""

    def forward(self, ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits, _ = super().forward(ids)
        rows = logits.mean(1)
        return logits, F.cross_entropy(rows @ rows.T, ids[:, 0] % len(rows))


class UsesTwo(Language):
    """Its loss uses the output of a block beside that of its head."""

    def forward(self, ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        x = first = self.blocks[0](self.embed(ids))
        for block in self.blocks[1:]:
            x = block(x)
        logits = self.head(x)
        return logits, logits.square().mean() + first.square().mean()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "language": Language,
    "contrastive": Contrastive,
    "mixes rows": lambda: Language(mixes=True),
    "uses two": UsesTwo,
}


def trained(name: str) -> list[Any]:
    """Losses, logits and parameters; half of the targets of later steps are ignored; the last is smaller."""
    torch.manual_seed(1)
    model = MODELS[name]().to(D)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    draw, told = torch.Generator().manual_seed(2), list[Any]()
    for number, rows in enumerate([8, 8, 8, 8, 8, 5]):
        ids = torch.randint(0, 20, (rows, 6), generator=draw)
        labels = ids.roll(-1, 1)
        if number >= 3:
            labels[: rows // 2, 2:] = IGNORED
        logits, loss = model(ids, labels=labels)
        (loss / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        told += [loss.item(), logits.detach().sum().item()]
    with torch.no_grad():
        told.append(model(ids)[0].sum().item())
    return [*told, *(each.detach().clone() for each in model.state_dict().values()), torch.randn(3)]


def on_rank(rank: Rank, plan: str, name: str) -> tuple[list[Any], str, list[str]]:
    """What was trained, the order of what the first stage sends and is sent back, and what is said."""
    order: list[str] = []
    with rank.session(plan) as session:
        stages = session.strategies.ordered[0]._stages
        for kind, turn in [("send", "F"), ("receive", "B")]:
            setattr(stages, kind, saying(getattr(stages, kind), order, turn))
        found = trained(name)
        said = [*without_codes(session.notes), *without_codes(session.strategies.notes())]
        return found, "".join(order), [each for each in said if "schedule=" in each]


def compare(ranks: Ranks, plan: str, name: str) -> list[tuple[str, list[str]]]:
    expected, found = trained(name), ranks(on_rank, plan, name)
    for got, _, _ in found:
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)
    return [(said, notes) for _, said, notes in found]


def test_micro_batches_are_under_way_together(two: Ranks):
    (said, _), _ = compare(two, "pipeline=2,micro-batches=4", "language")
    assert said.count(ALL_FORWARD) >= 3


def test_micro_batches_go_back_as_they_come(two: Ranks):
    (said, notes), _ = compare(two, "pipeline=2,micro-batches=4,schedule=1f1b", "language")
    assert said.count(BY_TURNS) >= 4
    assert notes == []


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(each, marks=pytest.mark.soak) for each in ("contrastive", "uses two")), "mixes rows"],
)
def test_a_loss_that_does_not_come_apart_has_the_same_numbers(two: Ranks, name: str):
    (said, _), _ = compare(two, "pipeline=2,micro-batches=4,schedule=1f1b", name)
    assert BY_TURNS * 3 not in said


def names(rank: Rank) -> list[str]:
    with rank.session("pipeline=2,micro-batches=4"):
        model = Language().to(D)
        for _ in range(2):
            ids = torch.randint(0, 20, (8, 6))
            model(ids, labels=ids)[1].backward()
        return [parameter_name(each) for each in model.parameters()]


def test_parameters_keep_their_names(two: Ranks):
    expected = [name for name, _ in Language().named_parameters()]
    assert two(names) == [expected, expected]


@pytest.mark.soak
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero-bubble"])
@pytest.mark.parametrize(
    "mesh",
    [
        "pipeline=4",
        "data=2,pipeline=2",
        "data=2,pipeline=2,zero1",
        "tensor=2,pipeline=2",
        "pipeline=2,context=2",
        "pipeline=4,recompute=full",
    ],
)
def test_schedules_on_four_ranks(four: Ranks, mesh: str, schedule: str):
    if "recompute" in mesh and schedule == "zero-bubble":
        pytest.skip("a contradiction")
    compare(four, f"{mesh},micro-batches=4,schedule={schedule}", "language")
