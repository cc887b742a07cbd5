"""Redirection of a traced script from accelerators to the CPU.

Tensors without data need not lie on a device. Torch cannot exchange a parameter without data for one on
another device, and counts are the same everywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ronde.patching.patches import Patches

__all__ = ["on_processor"]

_HERE = torch.device("cpu")
_OURS = ("cpu", "meta")
_MOVES = (Tensor.cuda, Tensor.pin_memory)


@contextmanager
def on_processor() -> Iterator[None]:
    """Hide accelerators inside the block, and redirect named ones to the CPU."""
    patches = Patches()
    for owner in (torch.cuda, torch.xpu, torch.backends.mps, torch.accelerator):
        _answer(patches, owner, "is_available", False)
    for owner in (torch.cuda, torch.xpu, torch.accelerator):
        _answer(patches, owner, "device_count", 0)
    _answer(patches, torch.accelerator, "current_accelerator", None)
    # Functions that a script calls with a device that it has named.
    for name in ("set_device", "synchronize", "reset_peak_memory_stats"):
        _answer(patches, torch.cuda, name, None)
    try:
        with _Redirected():
            yield
    finally:
        patches.restore()


def _answer(patches: Patches, owner: Any, name: str, value: object) -> None:
    """Replace a function of torch's by a constant."""

    # As around torch's own: its compiler, which a trace may import, asks for `__wrapped__`.
    @functools.wraps(getattr(owner, name))
    def constant(*_: Any, **__: Any) -> Any:
        return value

    patches.set(owner, name, constant)


class _Redirected(TorchFunctionMode):
    """Function mode that replaces devices among arguments by the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _MOVES:
            return args[0]
        if func is Tensor.to and len(args) > 1 and isinstance(args[1], str | int):
            args = (args[0], _here(args[1]), *args[2:])
        if kwargs.get("device") is not None:
            kwargs["device"] = _here(kwargs["device"])
        args = tuple(_here(each) if isinstance(each, torch.device) else each for each in args)
        return func(*args, **kwargs)


def _here(device: Any) -> torch.device:
    """Return the CPU, or a device without data unchanged."""
    named = None if isinstance(device, int) else torch.device(device)
    return named if named is not None and named.type in _OURS else _HERE
