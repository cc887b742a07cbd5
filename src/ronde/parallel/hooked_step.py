"""Replacing an optimizer's step inside the wrapper by which torch calls hooks and its profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from ronde.boundary.patches import Patches

__all__ = ["replace_step"]


def replace_step(
    patches: Patches, kind: Any, around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Let `around(step)` be the step of this class, if it has one of its own; hooks are called as ever."""
    plain = vars(kind).get("step")
    if plain is None:
        return  # inherited
    if not getattr(plain, "hooked", False):
        # As torch does when the first of the kind is made; those that are there keep it when we go.
        kind.step = _with_hooks(plain)
    patches.set(kind, "step", _with_hooks(around(kind.step.__wrapped__)))


def _with_hooks(step: Callable[..., Any]) -> Any:
    """A step as torch calls it: hooks before and after, and what its profiler looks for."""
    hooked: Any = Optimizer.profile_hook_step(step)
    hooked.hooked = True
    return hooked
