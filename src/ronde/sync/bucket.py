"""A bucket: gradients that travel together in one flat buffer.

Behind the gradients lies one presence flag for each: how many ranks computed it in this backward. A
gradient that no rank computed stays untouched, `None` included.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ronde.comm.process_group import Comm, Pending
from ronde.errors import RondeError
from ronde.sync.leaf import Leaf

__all__ = ["Bucket", "assign_buckets"]


class Bucket:
    """Averages the gradients of some leaves of one dtype and device.

    Args:
        leaves: in the order in which backward is expected to reach them.
        comm: the reducer's own group.
    """

    def __init__(self, leaves: Sequence[Leaf], comm: Comm) -> None:
        self.leaves = list(leaves)
        self._comm = comm
        first = self.leaves[0]
        sizes = [leaf.shape.numel() for leaf in self.leaves]
        self._buffer = torch.zeros(sum(sizes) + len(sizes), dtype=first.dtype, device=first.device)
        *pieces, self._flags = self._buffer.split([*sizes, len(sizes)])
        self._views = [piece.view(leaf.shape) for piece, leaf in zip(pieces, self.leaves, strict=True)]
        self._places = {id(leaf.tensor): place for place, leaf in enumerate(self.leaves)}
        self._ready: set[int] = set()
        self._pending: Pending | None = None
        self.stale = False

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The leaves that are there still."""
        found = [leaf.tensor for leaf in self.leaves]
        return [tensor for tensor in found if tensor is not None]

    @property
    def launched(self) -> bool:
        return self._pending is not None

    @property
    def complete(self) -> bool:
        """Every gradient has been computed in this backward."""
        return len(self._ready) == len(self.leaves)

    @property
    def touched(self) -> bool:
        return bool(self._ready)

    def mark(self, tensor: torch.Tensor) -> None:
        """A gradient has been accumulated; after the bucket left, what was sent is `stale`.

        Raises:
            RondeError: for a sparse gradient.
        """
        if tensor.grad is not None and tensor.grad.layout != torch.strided:
            raise RondeError(
                f"a parameter of shape {list(tensor.shape)} has a sparse gradient, which is not available "
                f"in this version; use sparse=False"
            )
        if self._pending is not None:
            self.stale = True
        self._ready.add(self._places[id(tensor)])

    @torch.no_grad()
    def launch(self) -> None:
        """Send what is there; gradients that are missing count as they stand, or as nought."""
        views: list[torch.Tensor] = []
        gradients: list[torch.Tensor] = []
        for view, leaf in zip(self._views, self.leaves, strict=True):
            tensor = leaf.tensor
            if tensor is not None and tensor.grad is not None:
                views.append(view)
                gradients.append(tensor.grad)
        if len(gradients) < len(self.leaves):
            self._buffer.zero_()
        if gradients:
            torch._foreach_copy_(views, gradients)
        if self.complete:
            self._flags.fill_(1)
        else:
            flags = [float(place in self._ready) for place in range(len(self.leaves))]
            self._flags.copy_(torch.tensor(flags, dtype=self._flags.dtype))
        self._pending = self._comm.all_reduce_async(self._buffer)

    def send_again(self) -> None:
        """Send what has been accumulated since the bucket left."""
        assert self._pending is not None
        self._pending.wait()
        self.launch()

    @torch.no_grad()
    def finish(self) -> None:
        """Wait, and put the averages where the gradients were."""
        assert self._pending is not None
        self._pending.wait()
        computed = range(len(self.leaves)) if self.complete else self._computed_somewhere()
        # One pass over the memory: the quotient is written where it belongs.
        for place in computed:
            tensor = self.leaves[place].tensor
            if tensor is None:
                continue
            if tensor.grad is None:
                tensor.grad = torch.empty_like(tensor)
            torch.div(self._views[place], self._comm.world_size, out=tensor.grad)
        self.reset()

    def _computed_somewhere(self) -> list[int]:
        return [place for place, count in enumerate(self._flags.tolist()) if abs(count) > 0]

    def reset(self) -> None:
        """Forget this backward."""
        self._ready.clear()
        self._pending = None
        self.stale = False


def assign_buckets(leaves: Sequence[Leaf], first_bytes: int, bucket_bytes: int) -> list[list[Leaf]]:
    """Cut `leaves` into buckets, in order; one dtype and device in each.

    The first is small, so that communication starts early in backward (as in PyTorch DDP, Li et al. 2020).
    """
    buckets: list[list[Leaf]] = []
    open_buckets: dict[tuple[torch.dtype, torch.device], tuple[list[Leaf], int]] = {}
    for leaf in leaves:
        kind = (leaf.dtype, leaf.device)
        members, size = open_buckets.get(kind, ([], 0))
        members.append(leaf)
        size += leaf.bytes
        limit = first_bytes if not buckets else bucket_bytes
        if size >= limit:
            buckets.append(members)
            open_buckets.pop(kind, None)
        else:
            open_buckets[kind] = (members, size)
    buckets.extend(members for members, _ in open_buckets.values())
    return buckets
