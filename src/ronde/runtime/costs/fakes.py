"""Training of a model without data in its parameters, on real data.

Tensors made in a module's constructor have no data, nor have results computed of them. All else is real: data
sets, loaders, samplers, indices. So a script may index, mask and count its data as it likes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ronde.patching.patches import Patches
from ronde.patching.torch_internals import FakeTensor, FakeTensorMode, disable_current_modes, pytree

__all__ = ["answer", "faked", "is_real", "really"]

_DEEPEST = 60
_MAKING = ("__init__", "reset_parameters", "_reset_parameters")


def answer(tensor: Tensor) -> bool | float | int | complex:
    """Return a stand-in for a value without data: 1 (a safe divisor), or False."""
    if tensor.dtype is torch.bool:
        return False
    if tensor.dtype.is_complex:
        return 1 + 0j
    return 1.0 if tensor.dtype.is_floating_point else 1


def is_real(args: Any, kwargs: Any) -> bool:
    """Return whether an operation is on the script's data, outside of module constructors."""
    operands = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    if any(isinstance(each, FakeTensor) for each in operands):
        return False
    return bool(operands) or not _makes_a_module()


def really(func: Any, args: Any, kwargs: Any) -> Any:
    """Run the operation on real tensors."""
    with disable_current_modes():
        return func(*args, **kwargs)


def _makes_a_module() -> bool:
    """Return whether a module's constructor asks for a tensor."""
    frame: Any = sys._getframe(2)
    for _ in range(_DEEPEST):
        if frame is None:
            return False
        if frame.f_code.co_name in _MAKING and isinstance(frame.f_locals.get("self"), nn.Module):
            return True
        frame = frame.f_back
    return False


@contextmanager
def faked() -> Iterator[FakeTensorMode]:
    """Make tensors without data inside the block, except where `is_real`."""
    patches = Patches()
    patches.set(torch, "compile", _uncompiled)
    swap = torch.utils.swap_tensors

    def moved(old: Tensor, new: Tensor) -> None:
        # A `module.to` without effect: torch cannot swap tensors without data, because of weak references to
        # them.
        if (old.device, old.dtype, old.shape) != (new.device, new.dtype, new.shape):
            swap(old, new)

    patches.set(torch.utils, "swap_tensors", moved)
    patches.add(FakeTensor, "__format__", _formatted)
    copied = Tensor.__deepcopy__

    def copy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
        return _copied(tensor, memo) if isinstance(tensor, FakeTensor) else really(copied, (tensor, memo), {})

    patches.set(Tensor, "__deepcopy__", copy)
    # Saving would overwrite a checkpoint with tensors without data.
    patches.set(torch, "save", lambda *_, **__: None)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            yield mode
    finally:
        patches.restore()


def _formatted(tensor: Tensor, spec: str) -> str:
    """Format a tensor like one with data: a single value as a number."""
    return format(tensor.item(), spec) if tensor.dim() == 0 else object.__format__(tensor, spec)


def _copied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """Copy a tensor without data: torch would copy a storage that does not exist."""
    if id(tensor) not in memo:
        new = tensor.detach().clone()
        is_parameter = isinstance(tensor, nn.Parameter)
        asked = tensor.requires_grad
        memo[id(tensor)] = nn.Parameter(new, asked) if is_parameter else new.requires_grad_(asked)
    return memo[id(tensor)]


def _uncompiled(model: Any = None, **_: Any) -> Any:
    """Return a function uncompiled: compiled code has no operations to count.

    A decorator with options returns its function unchanged.
    """
    return model if model is not None else (lambda function: function)
