"""Texts of refusals of a plan."""

from __future__ import annotations

from ronde.plan.axes import KEYS
from ronde.plan.values import Values

__all__ = ["contradiction", "unused"]


def contradiction(first: str, second: str, remedy: str) -> str:
    return f"{first} and {second} contradict each other; nearest legal: {remedy} [R210]"


def unused(plan: Values, name: str, other: str, why: str) -> str:
    """Return the error about a key that has no effect together with `other`."""
    default = KEYS[name].write(KEYS[name].default)
    return f"{plan.item(name)} has no effect with {other}: {why}; nearest legal: {other},{default} [R219]"
