"""How many bytes of tensors are alive at most, of those that are made while one looks."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["PeakBytes"]


class PeakBytes(TorchDispatchMode):
    """Adds up storages as operations make them, and takes them off as they go.

    Attributes:
        most: the largest sum so far.
    """

    __module__ = "ronde.testing.peak_bytes"  # under a mode of a script's own a model would not be cut

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._now = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if _is_dense(leaf)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if _is_dense(leaf) and id(leaf.untyped_storage()) not in before:
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self._now += size
        self.most = max(self.most, self._now)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self._now -= size


def _is_dense(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
