"""Takes a script that is traced for one on the processor: what has no data need not lie on a device.

Torch cannot exchange a parameter without data for one on another device, and counts are the same everywhere.
"""

from __future__ import annotations

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
    """Inside, there is no accelerator for who asks, and who names one gets the processor."""
    patches = Patches()
    for owner in (torch.cuda, torch.xpu, torch.backends.mps, torch.accelerator):
        patches.set(owner, "is_available", lambda: False)
    for owner in (torch.cuda, torch.xpu, torch.accelerator):
        patches.set(owner, "device_count", lambda: 0)
    patches.set(torch.accelerator, "current_accelerator", lambda *_, **__: None)
    # What a script calls of a device that it has named.
    for name in ("set_device", "synchronize", "reset_peak_memory_stats"):
        patches.set(torch.cuda, name, lambda *_, **__: None)
    try:
        with _Redirected():
            yield
    finally:
        patches.restore()


class _Redirected(TorchFunctionMode):
    """Devices among arguments are the processor."""

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
    """The processor, but for a device that is one without data already."""
    named = None if isinstance(device, int) else torch.device(device)
    return named if named is not None and named.type in _OURS else _HERE
