"""The memory of buckets: known as such while gradients lie in it, and apart from the allocator's."""

from __future__ import annotations

import mmap

import torch
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["GradientMemory", "standing_memory"]


class GradientMemory:
    """Remembers the memory in which gradients of several leaves lie, for as long as anybody holds it."""

    def __init__(self) -> None:
        self._storages: set[StorageWeakRef] = set()

    def add(self, flat: torch.Tensor) -> None:
        """Gradients lie in `flat` from now on."""
        self._storages = {storage for storage in self._storages if not storage.expired()}
        self._storages.add(StorageWeakRef(flat.untyped_storage()))

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies in a bucket."""
        return tensor.layout is torch.strided and StorageWeakRef(tensor.untyped_storage()) in self._storages


def standing_memory(numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A flat tensor [numel] that stays for a whole run; its contents are undefined.

    A step of a large model asks for memory and frees it again, block by block. What is asked for in between
    and stays would keep the heap from closing: it would grow beside what is free.
    """
    if device.type != "cpu" or not numel:
        return torch.empty(numel, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, numel * dtype.itemsize), dtype=dtype)
