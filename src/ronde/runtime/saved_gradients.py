"""Saving of gradients as separate tensors, without the bucket around them.

`torch.save` saves a tensor's whole storage. On one device the storage of a gradient is that gradient; here a
bucket holds those of other parameters as well.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from ronde.patching.modes_first import modes_first
from ronde.patching.patches import Patches

__all__ = ["install"]


def install(patches: Patches, lies_in_bucket: Callable[[torch.Tensor], bool]) -> None:
    """Make `torch.save` write a gradient without its neighbours in memory."""
    plain_save: Any = torch.save
    plain_reduce: Any = torch.Tensor.__reduce_ex__
    # By thread: `copy.copy` in another thread calls the same method, and must share memory.
    saving = threading.local()

    @functools.wraps(plain_save)
    def save(*args: Any, **kwargs: Any) -> None:
        before = getattr(saving, "now", False)
        saving.now = True
        try:
            plain_save(*args, **kwargs)
        finally:
            saving.now = before

    def reduce(tensor: torch.Tensor, protocol: Any) -> Any:
        if getattr(saving, "now", False) and type(tensor) is torch.Tensor and lies_in_bucket(tensor):
            tensor = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return plain_reduce(tensor, protocol)

    patches.set(torch, "save", save)
    patches.set(torch.Tensor, "__reduce_ex__", modes_first(reduce))
