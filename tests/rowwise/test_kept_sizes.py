"""A size of the batch that a module keeps is the whole batch's between calls, and this rank's inside them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from hazards.harness import check, outcome
from hazards.sizes import HAZARDS
from ronde.messages import lift
from ronde.rowwise.kept_sizes import AMBIGUOUS, KeptSizes
from ronde.rowwise.observe import Observation
from ronde.rowwise.rows_int import is_counted
from ronde.testing.run_ranks import Rank
from rowwise.one_rank import OneRank, observe

T = torch.Tensor


class Keeps(nn.Module):
    """Sets a size of its input where that is another; `seen` is what it finds in each call."""

    def __init__(self, size: Any) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.kept: Any = None
        self.size, self.seen = size, []

    def forward(self, x: T) -> T:
        self.seen.append(type(self.kept))
        if self.kept != self.size(x):
            self.kept = self.size(x)
        return self.inner(x)


SIZES = {
    "shape": (lambda x: x.shape, torch.Size([16, 4]), torch.Size([4, 4])),
    "tuple": (lambda x: (x.shape[1], x.size(0), "rows"), (4, 16, "rows"), (4, 4, "rows")),
    "number": (lambda x: x.size(0), 16, 4),
    "multiple": (lambda x: x.flatten().size(0), 64, 16),
}


@pytest.mark.parametrize("name", SIZES)
def test_is_of_the_whole_batch_between_calls(name: str) -> None:
    size, whole, here = SIZES[name]
    module, kept = Keeps(size), KeptSizes()
    x = torch.randn(4, 4)  # of 16 rows, which four ranks have
    first = observe(module, (x,), sizes=kept).verdict
    assert (first.sharded, module.kept, type(module.kept)) == (True, whole, type(whole))
    with kept.shown(module, 16, 4, first.sizes):
        assert (module.kept, type(module.kept)) == (here, type(here))
        module(x)
    second = observe(module, (x,), sizes=kept).verdict
    assert (second.sharded, second.sizes, module.kept) == (True, (), whole)
    with kept.shown(module, 32, 8, first.sizes):
        assert module.kept == whole
        module(torch.randn(8, 4))
        assert module.kept == size(torch.randn(8, 4))
    assert module.kept == size(torch.randn(32, 4))


def test_is_no_number_of_rows_once_a_call_is_over() -> None:
    module, kept = Keeps(lambda x: x.shape), KeptSizes()
    for _ in range(2):
        observe(module, (torch.randn(4, 4),), sizes=kept)
        assert not any(map(is_counted, module.kept))


def test_what_it_is_to_a_batch_is_part_of_the_form_of_a_call() -> None:
    module, kept = Keeps(lambda x: x.shape), KeptSizes()
    assert kept.form(module, 16, lambda rows: {rows // 2}) == ()
    observe(module, (torch.randn(4, 4),), sizes=kept)
    parts = {rows: kept.form(module, rows, lambda rows: {rows // 2}) for rows in (16, 10, 32)}
    assert parts == {16: (None,), 10: ((16,),), 32: (AMBIGUOUS,)}
    module.kept = torch.Size([16, 4])  # by the script: of it nothing is known
    assert kept.form(module, 16, lambda rows: {rows // 2}) == ()


def test_is_as_before_where_a_call_is_unwound() -> None:
    module, kept = Keeps(lambda x: x.shape), KeptSizes()
    observe(module, (torch.randn(4, 4),), sizes=kept)
    before = module.kept
    assert not observe(module, (torch.randn(5, 4),), sizes=kept, elsewhere={0: "a problem"}).verdict.sharded
    assert module.kept is before
    assert kept.form(module, 16, lambda rows: {4}) == (None,)


def test_is_not_kept_of_a_trial() -> None:
    module, kept, x = Keeps(lambda x: x.shape), KeptSizes(), torch.randn(4, 4)
    observation = Observation(module, ((x,), {}), [0], OneRank(16, 4), list, kept, stands=False)
    reason = observation.run(lambda: module(x))[1].reason
    assert (reason, module.kept) == ("it keeps kept, which depends on the batch, on itself [R342]", None)


@pytest.mark.parametrize("size", [lambda x: len(x) * 2, lambda x: [len(x)], lambda x: (x.shape, 1)])
def test_is_a_length_by_itself_or_in_a_flat_tuple(size: Any) -> None:
    module = Keeps(size)
    reason = observe(module, (torch.randn(4, 4),)).verdict.reason
    assert lift(reason)[1].endswith("depends on the batch, on itself")


def _hazard(rank: Rank, name: str, plan: str, end: str) -> list[str]:
    return check(rank, dataclasses.replace(HAZARDS[name], end=end or HAZARDS[name].end), plan)


@pytest.mark.parametrize(
    ("name", "plan", "world", "end"),
    [
        ("anchors", "zero3", 3, ""),
        ("a number of rows", "zero3", 2, ""),
        ("anchors in a checkpoint", "ddp", 3, ""),
        ("as many as a part", "ddp", 3, ""),
        *[
            pytest.param(name, plan, world, end, marks=pytest.mark.soak)
            for name in HAZARDS
            for plan, world, end in [("ddp", 3, ""), ("zero3", 2, ""), ("zero3", 3, "")]
            + [(plan, 2, "right") for plan in ("micro-batches=2", "recompute=full", "central", "zero1")]
        ],
    ],
)
def test_trains_as_on_one_device(ranks: Any, name: str, plan: str, world: int, end: str) -> None:
    assert ranks(world, _hazard, name, plan, end) == [[]] * world


def _own_loss(rank: Rank) -> tuple[Any, ...]:
    found = outcome(rank, HAZARDS["anchors of a detector with its own loss"])
    return list(found.problems), found.cut["Anchored"], [note for note in found.notes if "rows" in note]


def test_is_known_inside_a_module_that_runs_in_parts(ranks: Any) -> None:
    assert ranks(2, _own_loss) == [([], 12, [])] * 2
