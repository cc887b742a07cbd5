"""Replacement of an optimizer's step inside torch's wrapper for hooks and profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from ronde.patching.patches import Patches

__all__ = ["replace_step"]


def replace_step(
    patches: Patches, kind: Any, around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Replace the step that this class defines by `around(step)`; hooks are called as before.

    torch wraps a class's step when the first optimizer of the class is made, and still does so here:
    otherwise a script that wraps the step again would have two wrappers, and its hooks would be called twice.
    """
    found = vars(kind).get("step")
    if found is None:
        return  # this class inherits its step
    wrapped = _is_hooked(found)
    plain = found.__wrapped__ if wrapped else found

    def undo() -> None:
        # Optimizers that were made meanwhile rely on the wrapper.
        kind.step = found if wrapped else _with_hooks(plain) if _is_hooked(kind.step) else plain

    patches.undo(undo)
    kind.step = _with_hooks(around(plain)) if wrapped else around(plain)


def _is_hooked(step: Any) -> bool:
    return getattr(step, "hooked", False)


def _with_hooks(step: Callable[..., Any]) -> Any:
    """Wrap a step as torch does: hooks before and after, and the profiler's attribute."""
    hooked: Any = Optimizer.profile_hook_step(step)
    hooked.hooked = True
    return hooked
