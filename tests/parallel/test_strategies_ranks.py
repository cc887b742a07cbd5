"""The strategies of a session are those that its plan names, and no class overrides what another does."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest

import ronde.policies
import ronde.shards
import ronde.strategies
from ronde.plan.strategies import strategies_of
from ronde.testing.run_ranks import Rank


def of_session(rank: Rank, plan: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    with rank.session(plan) as session:
        ordered = tuple(each.name for each in session.strategies.ordered)
        return ordered, strategies_of(session.plan, rank.world_size)


@pytest.mark.parametrize(
    "plan",
    ["ddp", "zero3", "hybrid", "context=2,zero1", "tensor=2", "pipeline=2", "expert=2", "expert=2,context=2"],
)
def test_a_session_has_the_strategies_of_its_plan(ranks: Callable[..., list[Any]], plan: str) -> None:
    for ordered, named in ranks(2, of_session, plan):
        assert ordered == named


def classes() -> list[type]:
    """All classes of the rooms in which state is in shards."""
    found: dict[str, type] = {}
    for room in (ronde.shards, ronde.policies, ronde.strategies):
        for info in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            module = importlib.import_module(info.name)
            own = [each for each in vars(module).values() if isinstance(each, type)]
            found |= {f"{info.name}.{each.__name__}": each for each in own if each.__module__ == info.name}
    assert len(found) > 30
    return list(found.values())


def test_no_concrete_method_is_overridden() -> None:
    overridden = [
        f"{kind.__qualname__}.{name} of {base.__qualname__}"
        for kind in classes()
        for base in kind.__mro__[1:]
        if base.__module__.startswith("ronde.")
        for name, value in vars(kind).items()
        if callable(value) and not name.startswith("__") and name in vars(base)
        if name not in getattr(base, "__abstractmethods__", ())
    ]
    assert overridden == []
