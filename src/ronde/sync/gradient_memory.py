"""Which memory is a bucket's: a gradient there is a small part of what its storage holds."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["GradientMemory"]


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
