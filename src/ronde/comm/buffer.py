"""Flat buffers whose mean over ranks is taken in place; what gradients lie in.

A script may keep what it was given of a buffer (a gradient of the step before): a buffer is written again
only when nobody else refers to its memory, else others are written in its stead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from ronde.patching.torch_internals import storage_use_count

__all__ = ["Buffer", "InOwnMemory", "Source", "Storage", "TorchBuffer", "references"]

# Where in a buffer a flat tensor would have been copied to.
Source = tuple[int, torch.Tensor]


class Buffer(Protocol):
    """A flat tensor of one size on all ranks; each step of an averaging is made by all of them.

    `open`, fill what it returns, `launch`, and leave what was given there as it is; then `advance` now and
    then; then `reduce`, `collect` and `settle`, for several buffers each before the next, so that one wait
    serves all. After `settle` the tensor that `open` returned holds the mean, and is this rank's own again.
    """

    @property
    def address(self) -> int:
        """Where the buffer's memory begins."""
        ...

    def open(self, users: int) -> tuple[torch.Tensor, bool]:
        """What to fill, and whether it is the buffer's memory: if at most `users` tensors lie there."""
        ...

    @property
    def own(self) -> tuple[int, int]:
        """Which elements this rank sums: they need not be copied, but may be given to `launch`."""
        ...

    def launch(self, sources: Sequence[Source] = ()) -> None:
        """This rank has filled its tensor, but for what it gives here, which lies in `own`."""
        ...

    def advance(self) -> bool:
        """Do what can be done without waiting; whether there is no more of it."""
        ...

    def reduce(self) -> None:
        """Wait until all have filled theirs, and sum this rank's part."""
        ...

    def collect(self) -> None:
        """Wait until all have summed their parts, and take them over."""
        ...

    def settle(self) -> None:
        """Wait until all have taken over what they need of this rank's memory."""
        ...


class Storage:
    """A flat tensor, and who else refers to its memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        # Held, because asking for it makes a reference.
        self._storage: Any = tensor.untyped_storage()
        self._own = self._count()

    def users(self) -> int:
        """How many tensors elsewhere refer to this memory."""
        return self._count() - self._own

    def _count(self) -> int:
        return references(self._storage)


def references(storage: Any) -> int:
    """How many tensors and names lie in a storage, the caller's included."""
    return storage_use_count(storage._cdata)


class InOwnMemory:
    """What buffers have in common whose gradients lie in memory of this rank alone."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._storage = Storage(tensor)

    @property
    def address(self) -> int:
        return self._storage.tensor.data_ptr()

    def open(self, users: int) -> tuple[torch.Tensor, bool]:
        same = self._storage.users() <= users
        if not same:
            self._storage = Storage(torch.zeros_like(self._storage.tensor))
        return self._storage.tensor, same

    @property
    def own(self) -> tuple[int, int]:
        return 0, 0


class TorchBuffer(InOwnMemory):
    """A buffer in ordinary memory of any device, averaged by the group's all-reduce.

    Args:
        comm: a `Comm`.
    """

    def __init__(self, numel: int, dtype: torch.dtype, device: torch.device, comm: Any) -> None:
        super().__init__(torch.zeros(numel, dtype=dtype, device=device))
        self._comm = comm
        self._pending: Any = None

    def launch(self, sources: Sequence[Source] = ()) -> None:
        assert not sources
        self._pending = self._comm.all_reduce_async(self._storage.tensor)

    def advance(self) -> bool:
        """The backend works by itself."""
        return True

    def reduce(self) -> None:
        self._pending.wait()

    def collect(self) -> None:
        self._storage.tensor.div_(self._comm.world_size)

    def settle(self) -> None:
        self._pending = None
