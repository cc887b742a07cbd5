"""A bucket: gradients that travel together in one flat buffer.

Behind the gradients lies one presence flag for each: how many ranks computed it in this backward. A
gradient that no rank computed stays untouched, `None` included.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ronde.comm.process_group import Comm, Pending
from ronde.errors import RondeError

__all__ = ["Bucket", "assign_buckets"]


class Bucket:
    """Averages the gradients of some parameters of one dtype and device.

    Args:
        parameters: in the order in which backward is expected to reach them.
        comm: the reducer's own group.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], comm: Comm) -> None:
        self.parameters = list(parameters)
        self._comm = comm
        first = self.parameters[0]
        sizes = [parameter.numel() for parameter in self.parameters]
        self._buffer = torch.zeros(sum(sizes) + len(sizes), dtype=first.dtype, device=first.device)
        *pieces, self._flags = self._buffer.split([*sizes, len(sizes)])
        self._views = [piece.view(p.shape) for piece, p in zip(pieces, self.parameters, strict=True)]
        self._places = {id(parameter): place for place, parameter in enumerate(self.parameters)}
        self._ready: set[int] = set()
        self._pending: Pending | None = None
        self._stale = False

    @property
    def launched(self) -> bool:
        return self._pending is not None

    @property
    def complete(self) -> bool:
        """Every gradient has been computed in this backward."""
        return len(self._ready) == len(self.parameters)

    @property
    def touched(self) -> bool:
        return bool(self._ready)

    def mark(self, parameter: torch.Tensor) -> None:
        """A gradient has been accumulated.

        Raises:
            RondeError: for a sparse gradient.
        """
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise RondeError(
                f"a parameter of shape {list(parameter.shape)} has a sparse gradient, which is not available "
                f"in this version; use sparse=False"
            )
        if self._pending is not None:
            # Again, after the bucket left: a checkpointed segment shares this parameter.
            self._stale = True
        self._ready.add(self._places[id(parameter)])

    @torch.no_grad()
    def launch(self) -> None:
        """Send what is there; gradients that are missing count as they stand, or as nought."""
        present = [place for place, parameter in enumerate(self.parameters) if parameter.grad is not None]
        if len(present) < len(self.parameters):
            self._buffer.zero_()
        if present:
            gradients: list[torch.Tensor] = [self.parameters[place].grad for place in present]  # pyright: ignore[reportAssignmentType]
            torch._foreach_copy_([self._views[place] for place in present], gradients)
        if self.complete:
            self._flags.fill_(1)
        else:
            flags = [float(place in self._ready) for place in range(len(self.parameters))]
            self._flags.copy_(torch.tensor(flags, dtype=self._flags.dtype))
        self._pending = self._comm.all_reduce_async(self._buffer)

    @torch.no_grad()
    def finish(self) -> None:
        """Wait, and put the averages where the gradients were."""
        assert self._pending is not None
        self._pending.wait()
        if self._stale:
            self._pending, self._stale = None, False
            self.launch()
            assert self._pending is not None
            self._pending.wait()
        computed = range(len(self.parameters)) if self.complete else self._computed_somewhere()
        # One pass over the memory: the quotient is written where it belongs.
        for place in computed:
            parameter = self.parameters[place]
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            torch.div(self._views[place], self._comm.world_size, out=parameter.grad)
        self.reset()

    def _computed_somewhere(self) -> list[int]:
        return [place for place, count in enumerate(self._flags.tolist()) if abs(count) > 0]

    def reset(self) -> None:
        """Forget this backward."""
        self._ready.clear()
        self._pending = None
        self._stale = False


def assign_buckets(
    parameters: Sequence[torch.Tensor], first_bytes: int, bucket_bytes: int
) -> list[list[torch.Tensor]]:
    """Cut `parameters` into buckets, in order; one dtype and device in each.

    The first is small, so that communication starts early in backward (as in PyTorch DDP, Li et al. 2020).
    """
    buckets: list[list[torch.Tensor]] = []
    open_buckets: dict[tuple[torch.dtype, torch.device], tuple[list[torch.Tensor], int]] = {}
    for parameter in parameters:
        kind = (parameter.dtype, parameter.device)
        members, size = open_buckets.get(kind, ([], 0))
        members.append(parameter)
        size += parameter.numel() * parameter.element_size()
        limit = first_bytes if not buckets else bucket_bytes
        if size >= limit:
            buckets.append(members)
            open_buckets.pop(kind, None)
        else:
            open_buckets[kind] = (members, size)
    buckets.extend(members for members, _ in open_buckets.values())
    return buckets
