"""A unit: parameters that are gathered and let go of together, each rank keeping its part of them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from ronde.comm.home import Home
from ronde.comm.process_group import Comm
from ronde.sync.gradient_parts import Ranges

__all__ = ["Member", "Unit", "can_be_sharded"]


class Member:
    """One parameter of a unit.

    Attributes:
        ref: the parameter, held weakly; its unit stands as long as any rank may have it.
        own: this rank's elements of it, perhaps none.
        part: a copy of them, flat; what the optimizer updates.
        bytes: for each rank a view of its elements in the whole, where it has any.
        cdata: tells the memory of the whole from other memory.
        version: of the parameter when its elements were last complete.
    """

    __slots__ = (
        "_alone",
        "_base",
        "_kind",
        "_spans",
        "_storage",
        "bytes",
        "cdata",
        "own",
        "part",
        "ref",
        "version",
    )

    def __init__(self, tensor: torch.Tensor, ranges: Ranges, rank: int) -> None:
        self.ref = weakref.ref(tensor)
        self.own = ranges[rank] or (0, 0)
        self._spans = ranges
        self.part: torch.Tensor = torch.empty(0)
        self.take(tensor)

    def take(self, tensor: torch.Tensor) -> None:
        """Go by where the parameter's elements lie now."""
        self._storage: Any = tensor.untyped_storage()
        before = _references(self._storage)
        self._kind = tensor.dtype, tensor.shape, tensor.stride(), tensor.device
        whole: Any = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        self._base: torch.Tensor = whole.set_(self._storage, 0, (tensor.numel(),))
        self.bytes = [
            None if span is None else self._base[slice(*span)].view(torch.uint8) for span in self._spans
        ]
        self.cdata: int = self._storage._cdata
        self.version = tensor._version
        # What refers to the memory when nobody but the parameter and this member do.
        self._alone = _references(self._storage) - before + _OF_A_PARAMETER

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

    def moved(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata != self.cdata

    @property
    def held(self) -> bool:
        """Whether a tensor elsewhere lies in the memory of the whole parameter."""
        alone = self._alone if self.ref() is not None else self._alone - 1
        return _references(self._storage) > alone

    def view(
        self, size: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """A tensor in the whole parameter's memory."""
        empty: Any = torch.empty(0, dtype=dtype, device=self._base.device)
        return empty.set_(self._storage, offset, size, stride)

    @property
    def there(self) -> bool:
        """Whether the whole has memory."""
        return self._storage.nbytes() > 0

    def make_room(self) -> None:
        """Memory for the whole; what is new of it is undefined."""
        if not self.there:
            self._storage.resize_(self._base.numel() * self._base.element_size())

    def free(self) -> bool:
        """Let go of the memory; whether the parameter had to be given other memory for it.

        What numpy was shown once cannot be resized any more.
        """
        fixed = not self._storage.resizable()
        if fixed:
            dtype, shape, stride, device = self._kind
            tensor, fresh = self.ref(), torch.empty_strided(shape, stride, dtype=dtype, device=device)
            if tensor is not None:
                tensor.data = fresh
            self.take(fresh if tensor is None else tensor)
        self._storage.resize_(0)
        return fixed


def _references(storage: Any) -> int:
    count: Any = torch._C._storage_Use_Count  # pyright: ignore[reportAttributeAccessIssue]
    return count(storage._cdata)


# To the memory of a parameter, asked for as above. It has a name here, or it would be gone by then.
_ANY = torch.nn.Parameter(torch.empty(1))
_OF_A_PARAMETER = _references(_ANY.untyped_storage())


class Unit:
    """Members of one dtype and device.

    Args:
        home: where parts live.

    Attributes:
        number: in the order in which units were made, the same on all ranks.
        whole: elements of all members are there, for anybody to use; the same on all ranks.
        written: while it was whole, somebody may have changed elements.
        lingers: it is not whole, but this rank has its memory still, because somebody holds a view of it.
    """

    def __init__(self, number: int, members: Sequence[Member], comm: Comm, home: Home) -> None:
        self.number = number
        self.members = list(members)
        self._comm = comm
        self._home = home
        self.whole = True
        self.written = False
        self.lingers = False
        sizes = [stop - start for start, stop in (member.own for member in members)]
        # One memory for all parts, so that they are few blocks.
        parts = home.room(sum(sizes), members[0].elements).split(sizes)
        for member, part in zip(members, parts, strict=True):
            member.part = part
        self.keep()

    @property
    def parameters(self) -> list[tuple[Member, Any]]:
        """Members whose parameter is there still."""
        found = [(member, member.ref()) for member in self.members]
        return [(member, tensor) for member, tensor in found if tensor is not None]

    def gather(self) -> None:
        """Complete the elements of all members; all ranks come here."""
        if self.lingers:
            self.keep()  # whoever holds a view may have written to it
        for member in self.members:
            member.make_room()
        self.complete()
        self.whole, self.lingers = True, False

    def complete(self) -> None:
        """Put every rank's part into the whole; all ranks come here."""
        there = [member for member in self.members if member.there]
        self._home.up([member.elements for member in there], [member.part for member in there])
        ranks = range(self._comm.world_size)
        parts = [[part for each in self.members if (part := each.bytes[rank]) is not None] for rank in ranks]
        self._comm.share(parts)

    def keep(self) -> None:
        """Take this rank's elements of the whole for its part."""
        self._home.down(
            [member.part for member in self.members], [member.elements for member in self.members]
        )

    def rest(self) -> bool:
        """It is whole no more; memory that somebody holds a view of is let go of later.

        Returns:
            whether members lie in other memory now.
        """
        if self.written:
            self.keep()
        self.whole, self.written = False, False
        self.lingers = any(member.held for member in self.members)
        return not self.lingers and self.free()

    def let_go(self) -> bool:
        """Free the memory of what lingers, if nobody holds any of it now; returns as `rest`."""
        if not self.lingers or any(member.held for member in self.members):
            return False
        self.keep()  # whoever held it may have written
        self.lingers = False
        return self.free()

    def free(self) -> bool:
        moved = [member.free() for member in self.members]
        return any(moved)

    def follow_update(self) -> None:
        """Parts have been updated: so is what lingers on some rank; all ranks come here."""
        for member in self.members:
            member.make_room()
        self.complete()
        if not self.lingers:
            self.free()


def can_be_sharded(tensor: torch.Tensor) -> bool:
    """Whether a parameter is a plain one that fills its memory."""
    if type(tensor) is not torch.nn.Parameter or tensor.storage_offset():
        return False
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
