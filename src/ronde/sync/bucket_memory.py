"""Memory of buckets: a registry for gradients, and allocation outside the heap."""

from __future__ import annotations

import mmap

import torch
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["GradientMemory", "standing_memory"]


class GradientMemory:
    """Registry of the storages with gradients of several leaves, while they live."""

    def __init__(self) -> None:
        self._storages: set[StorageWeakRef] = set()

    def add(self, flat: torch.Tensor) -> None:
        """Register a storage with gradients."""
        self._storages = {storage for storage in self._storages if not storage.expired()}
        self._storages.add(StorageWeakRef(flat.untyped_storage()))

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor lies in a bucket."""
        return tensor.layout is torch.strided and StorageWeakRef(tensor.untyped_storage()) in self._storages


def standing_memory(numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate a flat tensor [numel] for the whole run; its contents are undefined.

    A step of a large model asks for memory and frees it again, block by block. A lasting allocation in
    between would fragment the heap, which would grow beside its free memory.
    """
    if device.type != "cpu" or not numel:
        return torch.empty(numel, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, numel * dtype.itemsize), dtype=dtype)
