"""A unit: parameters that are gathered and let go of together, each rank keeping its part of them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from ronde.comm.buffer import Storage
from ronde.comm.process_group import Comm
from ronde.sync.gradient_parts import Ranges

__all__ = ["Member", "Unit", "can_be_sharded"]


class Member:
    """One parameter of a unit.

    Attributes:
        ref: the parameter, held weakly; its unit stands as long as any rank may have it.
        part: this rank's elements, flat, perhaps none; what the optimizer updates.
    """

    __slots__ = ("_base", "_kind", "_spans", "_storage", "bytes", "cdata", "own", "part", "ref", "version")

    def __init__(self, tensor: torch.Tensor, ranges: Ranges, rank: int) -> None:
        self.ref = weakref.ref(tensor)
        self.own = ranges[rank] or (0, 0)
        self._spans = ranges
        self.part: torch.Tensor = torch.empty(0)
        self.take(tensor)

    def take(self, tensor: torch.Tensor) -> None:
        """Go by where the parameter's elements lie now."""
        storage = tensor.untyped_storage()
        self._kind = tensor.dtype, tensor.shape, tensor.stride(), tensor.device
        whole: Any = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        self._base: torch.Tensor = whole.set_(storage, 0, (tensor.numel(),))
        del whole
        self.bytes = [
            None if span is None else self._base[slice(*span)].view(torch.uint8) for span in self._spans
        ]
        self.cdata: int = storage._cdata
        self.version = tensor._version
        del storage
        # What counts as somebody else's hold on the memory is anything beyond what is there now.
        self._storage = Storage(self._base)

    @property
    def elements(self) -> torch.Tensor:
        """This rank's elements in the whole parameter."""
        return self._base[slice(*self.own)]

    @property
    def numel(self) -> int:
        return self._base.numel()

    def stands(self, tensor: torch.Tensor) -> bool:
        """Whether it is still the kind of tensor that was cut, if perhaps in other memory."""
        return self._kind == (tensor.dtype, tensor.shape, tensor.stride(), tensor.device)

    @property
    def fixed(self) -> bool:
        """Whether the memory cannot be let go of: numpy was shown it once."""
        return not self._base.untyped_storage().resizable()

    def moved(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata != self.cdata

    @property
    def held(self) -> bool:
        """Whether a tensor elsewhere lies in the memory of the whole parameter."""
        return self._storage.users() > 0

    def view(
        self, size: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """A tensor in the whole parameter's memory."""
        base = self._base
        empty = torch.empty(0, dtype=dtype, device=base.device)
        return empty.set_(base.untyped_storage(), offset, size, stride)

    def make_room(self) -> None:
        """Memory for the whole; its contents are undefined."""
        self._base.untyped_storage().resize_(self._base.numel() * self._base.element_size())

    def free(self) -> None:
        self._base.untyped_storage().resize_(0)


class Unit:
    """Members of one dtype and device.

    Attributes:
        number: in the order in which units were made, the same on all ranks.
        whole: elements of all members are there.
        written: while it was whole, somebody may have changed elements.
    """

    def __init__(self, number: int, members: Sequence[Member], comm: Comm) -> None:
        self.number = number
        self.members = list(members)
        self._comm = comm
        self.whole = True
        self.written = False
        sizes = [stop - start for start, stop in (member.own for member in members)]
        first = members[0].elements
        # One memory for all parts, so that an optimizer's state and parts are few blocks.
        parts = torch.empty(sum(sizes), dtype=first.dtype, device=first.device).split(sizes)
        for member, part in zip(members, parts, strict=True):
            member.part = part
        self.keep()

    @property
    def parameters(self) -> list[tuple[Member, Any]]:
        """Members whose parameter is there still."""
        found = [(member, member.ref()) for member in self.members]
        return [(member, tensor) for member, tensor in found if tensor is not None]

    @property
    def held(self) -> bool:
        return any(member.held for member in self.members)

    def gather(self) -> None:
        """Complete the elements of all members; all ranks come here."""
        for member in self.members:
            member.make_room()
            member.elements.copy_(member.part)
        self.complete()

    def complete(self) -> None:
        """Every rank has written its own elements of the whole; on return all are there."""
        ranks = range(self._comm.world_size)
        parts = [[part for each in self.members if (part := each.bytes[rank]) is not None] for rank in ranks]
        self._comm.share(parts)

    def keep(self) -> None:
        """Take this rank's elements of the whole for its part."""
        for member in self.members:
            member.part.copy_(member.elements)

    def free(self) -> None:
        """Let go of the whole; nobody else may hold any of it."""
        for member in self.members:
            member.free()
        self.whole = False
        self.written = False

    @property
    def part_bytes(self) -> int:
        return sum(member.part.nbytes for member in self.members)

    @property
    def whole_bytes(self) -> int:
        return sum(member.numel * member.part.element_size() for member in self.members) if self.whole else 0


def can_be_sharded(tensor: torch.Tensor) -> bool:
    """Whether a parameter has memory of its own that nobody else refers to."""
    if type(tensor) is not torch.nn.Parameter:
        return False
    nbytes = tensor.numel() * tensor.element_size()
    if tensor.storage_offset() or tensor.untyped_storage().nbytes() != nbytes:
        return False
    alone = torch.nn.Parameter(torch.empty(1), requires_grad=tensor.requires_grad)
    return _references(tensor) == _references(alone)


def _references(tensor: torch.Tensor) -> int:
    storage: Any = tensor.untyped_storage()
    count: Any = torch._C._storage_Use_Count  # pyright: ignore[reportAttributeAccessIssue]
    return count(storage._cdata)
