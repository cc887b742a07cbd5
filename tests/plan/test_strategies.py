"""The strategies of plans, in order."""

from __future__ import annotations

import pytest

from ronde.plan import expand
from ronde.plan.strategies import strategies_of


@pytest.mark.parametrize(
    ("plan", "ranks", "names"),
    [
        ("ddp", 4, ()),
        ("zero1", 2, ("zero",)),
        ("zero3", 1, ()),
        ("zero1,offload=optimizer", 1, ("zero",)),
        ("hybrid", 2, ("rows",)),
        ("hybrid,micro-batches=2", 2, ("rows",)),
        ("ps", 2, ("servers",)),
        ("ps-async", 2, ()),
        ("local-sgd", 2, ()),
        ("context=2", 2, ("context",)),
        ("context=2,zero1", 2, ("zero", "context")),
        ("data=2,tensor=2,zero3", 4, ("tensor",)),
        ("tensor=2,pipeline=2", 4, ("pipeline",)),
        ("expert=2", 2, ("expert",)),
        ("expert=2,context=2", 2, ("expert", "context")),
        ("expert=2,pipeline=2,tensor=2", 8, ("pipeline",)),
        ("tensor=2", 1, ()),
    ],
)
def test_a_plan_has_these_strategies(plan: str, ranks: int, names: tuple[str, ...]) -> None:
    assert strategies_of(expand(plan), ranks) == names
