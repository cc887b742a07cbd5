"""Who updates which elements of which tensors: decided once for each, when it first comes."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence

import torch
from torch._C import DisableTorchFunction

from ronde.parallel.flat import is_dense
from ronde.parallel.partition import Part, partition
from ronde.sync.gradient_parts import Ranges

__all__ = ["Division", "in_equal_parts", "owned_by_main"]

Split = Callable[[Sequence[int], int], list[list[Part]]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Assigned:
    ref: weakref.ref[torch.Tensor]
    kind: tuple[object, ...]
    ranges: Ranges


class Division:
    """Remembers, by tensor, each rank's elements.

    Args:
        split: cuts a list of sizes for a number of ranks, `in_equal_parts` or `owned_by_main`.
    """

    def __init__(self, world_size: int, split: Split) -> None:
        self._world_size = world_size
        self._split = split
        self._assigned: dict[int, _Assigned] = {}

    def ranges(self, tensor: torch.Tensor) -> Ranges | None:
        """What was decided for this tensor as it is now, if anything was."""
        assigned = self._assigned.get(id(tensor))
        if assigned is None or assigned.ref() is not tensor or assigned.kind != _kind(tensor):
            return None
        return assigned.ranges

    def assign(self, tensors: Sequence[torch.Tensor]) -> list[Ranges | None]:
        """Divide those that are new here, laid end to end by dtype and device; ranks come alike.

        Returns:
            each tensor's ranges; None for what cannot be cut anywhere.
        """
        kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        with DisableTorchFunction():
            for tensor in tensors:
                if self.ranges(tensor) is None and _can_be_cut(tensor):
                    kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
            for members in kinds.values():
                cut = self._split([tensor.numel() for tensor in members], self._world_size)
                by_rank = [{part.tensor: (part.start, part.stop) for part in parts} for parts in cut]
                for place, tensor in enumerate(members):
                    key = id(tensor)
                    weakref.finalize(tensor, self._assigned.pop, key, None).atexit = False
                    ranges = tuple(each.get(place) for each in by_rank)
                    self._assigned[key] = _Assigned(weakref.ref(tensor), _kind(tensor), ranges)
            return [self.ranges(tensor) for tensor in tensors]


def in_equal_parts(sizes: Sequence[int], world_size: int) -> list[list[Part]]:
    """Every rank has as many elements of what comes together."""
    return partition(sizes, world_size)


def owned_by_main(sizes: Sequence[int], world_size: int) -> list[list[Part]]:
    """Rank 0 has everything."""
    everything = [Part(tensor=place, start=0, stop=size) for place, size in enumerate(sizes) if size]
    return [everything, *([] for _ in range(1, world_size))]


def _can_be_cut(tensor: torch.Tensor) -> bool:
    """One without dimensions is not worth it, and its state could not be told from a count of steps."""
    if not isinstance(tensor, (torch.Tensor, torch.nn.Parameter)) or tensor.is_complex():
        return False
    return bool(tensor.dim() and tensor.numel()) and is_dense(tensor)


def _kind(tensor: torch.Tensor) -> tuple[object, ...]:
    with DisableTorchFunction():
        return tensor.dtype, tensor.device, tensor.shape, tensor.stride()
