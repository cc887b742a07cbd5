"""Operations that keep a global tensor sharded; every other operation gathers.

A rule is a function `(context, func, args, kwargs)` that returns the result, or `NotImplemented` when it does
not cover this call. `table()` is the whole set, by torch function.
"""

from __future__ import annotations

from typing import Any

from ronde.tensor.global_tensor import Rule
from ronde.tensor.rules import elementwise, losses, reductions, rowwise, shapes

__all__ = ["table"]


def table() -> dict[Any, Rule]:
    """Return every rule, keyed by the function that `__torch_function__` receives."""
    rules: dict[Any, Rule] = {}
    for room in (elementwise, reductions, rowwise, shapes, losses):
        rules.update(room.rules())
    return rules
