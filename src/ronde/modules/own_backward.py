"""The backward of a user's `torch.autograd.Function` runs where its forward did: on the same rows.

It may call modules, run backward again or ask for gradients there: a reversible block, a checkpoint written
by hand. In the script, where backward is called, these would be taken for calls on a batch that is to be cut.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch.autograd.function import BackwardCFunction

from ronde.patching.patches import Patches
from ronde.rng.standing import here
from ronde.tensor.context import Context, Region
from ronde.tensor.graph import is_users_function

__all__ = ["install"]

_STANDING = "_ronde_standing"


def install(patches: Patches, context: Context) -> None:
    plain_init: Any = BackwardCFunction.__init__

    def init(node: Any) -> None:
        """A node is made as the function is applied, before its forward runs."""
        plain_init(node)
        if context.region is Region.SCRIPT or not is_users_function(type(node)._forward_cls):
            return
        if context.is_in_step():
            setattr(node, _STANDING, here(context))

    patches.set(BackwardCFunction, "__init__", init)
    for name in ("apply", "apply_boxed"):
        if hasattr(BackwardCFunction, name):
            patches.set(BackwardCFunction, name, _standing(context, getattr(BackwardCFunction, name)))


def _standing(context: Context, plain: Callable[..., Any]) -> Callable[..., Any]:
    def apply(node: Any, *gradients: Any) -> Any:
        with getattr(node, _STANDING, nullcontext)():
            return plain(node, *gradients)

    return apply
