"""The words in which a plan is refused."""

from __future__ import annotations

from ronde.plan.axes import KEYS
from ronde.plan.values import Values

__all__ = ["contradiction", "unused"]


def contradiction(first: str, second: str, remedy: str) -> str:
    return f"{first} and {second} contradict each other; nearest legal: {remedy} [R210]"


def unused(plan: Values, name: str, other: str, why: str) -> str:
    """A key that nothing asks where `other` holds."""
    default = KEYS[name].write(KEYS[name].default)
    return f"{plan.item(name)} does nothing with {other}: {why}; nearest legal: {other},{default} [R219]"
