"""Tensors of another class made out of a global tensor or a loss: torch does that without asking these.

The object of what it makes is torch's to make, and what a class with functions in Python gives below autograd
has one already. So it is given the whole value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ronde.patching.patches import Patches
from ronde.tensor.deferred import DeferredScalar
from ronde.tensor.global_tensor import GlobalTensor

__all__ = ["install"]


def install(patches: Patches) -> None:
    """Methods of `Tensor`: `x.as_subclass(C)`, `_make_subclass(C, x)`, and `C(x)`, which is its `__new__`."""
    tensor: Any = torch.Tensor
    plain: Any = tensor.as_subclass

    def as_subclass(value: torch.Tensor, cls: Any) -> Any:
        """By the class of a model's output (`y.as_subclass(type(output))`), which is a tensor's elsewhere."""
        return value if cls in (GlobalTensor, DeferredScalar) else plain(value, cls)

    patches.set(tensor, "as_subclass", _asking(functools.wraps(plain)(as_subclass), 0))
    for name in ("_make_subclass", "__new__"):
        patches.set(tensor, name, staticmethod(_asking(getattr(tensor, name), 1)))


def _asking(plain: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Have the argument at this place asked first, as it is asked by functions that do that."""

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = args[place] if len(args) > place else None
        if isinstance(given, (GlobalTensor, DeferredScalar)):
            return type(given).__torch_function__(plain, (type(given),), args, kwargs)
        return plain(*args, **kwargs)

    return call
