"""Flat buffers of gradients, averaged over ranks in place.

A script may keep tensors that lie in a buffer (a gradient of the step before): a buffer is written again only
when no other tensor refers to its memory; otherwise another buffer is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from ronde.patching.torch_internals import storage_use_count

__all__ = ["Buffer", "FlatStorage", "InOwnMemory", "Source", "TorchBuffer", "references"]

# Offset in a buffer, and the flat tensor that would have been copied there.
Source = tuple[int, torch.Tensor]


class Buffer(Protocol):
    """A flat tensor of one size on all ranks, averaged by collective steps.

    Call `open`, fill the tensor that it returns, `launch` with the tensors that were not copied, and leave
    these unchanged; then `advance` now and then; then `reduce`, `collect` and `settle`, for several buffers
    each before the next, so that one wait serves all. After `settle` the tensor that `open` returned holds
    the mean, and is this rank's own again.
    """

    @property
    def address(self) -> int:
        """The address of the buffer's memory."""
        ...

    def open(self, users: int) -> tuple[torch.Tensor, bool]:
        """Return the tensor to fill, and whether it is the buffer's memory.

        It is that memory if at most `users` tensors lie there.
        """
        ...

    @property
    def own(self) -> tuple[int, int]:
        """Begin and end of the elements that this rank sums.

        They need not be copied into the buffer, but may be given to `launch`.
        """
        ...

    def launch(self, sources: Sequence[Source] = ()) -> None:
        """Announce that this rank has filled its tensor.

        Only `sources`, which lie in `own`, were not copied there.
        """
        ...

    def advance(self) -> bool:
        """Make progress without waiting; return whether all such work is done."""
        ...

    def reduce(self) -> None:
        """Wait until all ranks have filled theirs, and sum this rank's part."""
        ...

    def collect(self) -> None:
        """Wait until all ranks have summed their parts, and copy these."""
        ...

    def settle(self) -> None:
        """Wait until all ranks have read this rank's memory."""
        ...


class FlatStorage:
    """A flat tensor, with a count of other references to its memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        # The storage object is kept, because each access to it creates a reference.
        self._storage: Any = tensor.untyped_storage()
        self._own = self._count()

    def users(self) -> int:
        """Return the number of tensors elsewhere that refer to this memory."""
        return self._count() - self._own

    def _count(self) -> int:
        return references(self._storage)


def references(storage: Any) -> int:
    """Return the number of references to a storage, the caller's included."""
    return storage_use_count(storage._cdata)


class InOwnMemory:
    """Base of buffers in memory of this rank alone."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._storage = FlatStorage(tensor)

    @property
    def address(self) -> int:
        return self._storage.tensor.data_ptr()

    def open(self, users: int) -> tuple[torch.Tensor, bool]:
        same = self._storage.users() <= users
        if not same:
            self._storage = FlatStorage(torch.zeros_like(self._storage.tensor))
        return self._storage.tensor, same

    @property
    def own(self) -> tuple[int, int]:
        return 0, 0


class TorchBuffer(InOwnMemory):
    """A buffer in ordinary memory of any device, averaged by the group.

    Args:
        comm: a `Comm`.
    """

    def __init__(self, numel: int, dtype: torch.dtype, device: torch.device, comm: Any) -> None:
        super().__init__(torch.zeros(numel, dtype=dtype, device=device))
        self._comm = comm
        self._pending: Any = None

    def launch(self, sources: Sequence[Source] = ()) -> None:
        assert not sources
        self._pending = self._comm.average_async(self._storage.tensor)

    def advance(self) -> bool:
        """No-op: the backend works by itself."""
        return True

    def reduce(self) -> None:
        self._pending.wait()

    def collect(self) -> None:
        """No-op: the whole is averaged already."""

    def settle(self) -> None:
        self._pending = None
