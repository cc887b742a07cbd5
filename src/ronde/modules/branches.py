"""`torch.cond` outside of a compiler: the branch that it takes, as Python would take it.

By itself it compiles a wrapper around the branches, by which it finds the parameters that they close over.
What runs on values of all ranks is not compiled, so these would get no gradient.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from ronde.patching.patches import Patches

__all__ = ["install"]


def install(patches: Patches) -> None:
    plain: Any = torch.cond

    @functools.wraps(plain)
    def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
        # The compiler comes by here, too, and takes the first.
        if torch.compiler.is_compiling() or _is_traced() or not callable(true_fn) or not callable(false_fn):
            return plain(pred, true_fn, false_fn, operands)
        return (true_fn if pred else false_fn)(*operands)

    patches.set(torch, "cond", cond)


def _is_traced() -> bool:
    """By `torch.export` and the like, or inside `torch.func`: there is no value to go by."""
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    return get_proxy_mode() is not None or functorch.peek_interpreter_stack() is not None
