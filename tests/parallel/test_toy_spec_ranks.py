"""A new way of dividing state is one function and a line of a table: gradients and optimizers follow."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from parallel.cut_models import Ranks, train
from ronde.policies.zero import RUNS
from ronde.shards.spec import Span
from ronde.testing.run_ranks import Rank


def halves(sizes: Sequence[int], ranks: int) -> list[tuple[Span | None, ...]]:
    """The first half of each tensor to the first rank, the other to the last."""
    others: list[Span | None] = [None] * (ranks - 2)
    return [((0, size // 2) if size > 1 else None, *others, (size // 2, size)) for size in sizes]


def by_halves(rank: Rank, plan: str) -> tuple[list[float], int]:
    kept, asked = RUNS["zero3"], list[int]()

    def counted(sizes: Sequence[int], ranks: int) -> list[tuple[Span | None, ...]]:
        asked.append(len(sizes))
        return halves(sizes, ranks)

    RUNS["zero3"] = counted
    try:
        with rank.session(plan):
            told = [float(each.double().norm()) for each in train("language")]
    finally:
        RUNS["zero3"] = kept
    return told, sum(asked)


@pytest.mark.parametrize("plan", ["zero3", pytest.param("data=2,tensor=2,zero3", marks=pytest.mark.soak)])
def test_state_by_halves_trains_as_on_one_device(ranks: Ranks, plan: str, request: pytest.FixtureRequest):
    run = request.getfixturevalue("four" if "tensor" in plan else "two")
    expected = [float(each.double().norm()) for each in train("language")]
    for told, divided in run(by_halves, plan):
        assert told == pytest.approx(expected, rel=1e-11)
        assert divided
