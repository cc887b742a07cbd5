"""A unit with private memory: each rank keeps a shard and copies the others'.

The copies are made when the whole unit is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch

from ronde.comm.buffer import references
from ronde.comm.pending import Pending
from ronde.comm.process_group import Comm
from ronde.shards.spec import ShardSpec, by_rank
from ronde.shards.unit import OF_A_PARAMETER, Member, Unit
from ronde.sync.memory_home import Home
from ronde.trace.resident import Census

__all__ = ["CopiedMember", "CopiedUnit", "copy_unit"]


@final
class CopiedMember(Member):
    """Parameter with memory of its own, allocated while it is whole.

    Args:
        spec: each rank's elements.
        rank: index of this rank.

    Attributes:
        bytes: views of each rank's elements in the whole, by the ranks that have some.
    """

    __slots__ = ("_rank", "_spec", "_staged", "bytes")

    def __init__(self, tensor: torch.Tensor, spec: ShardSpec, rank: int) -> None:
        super().__init__(tensor, spec[rank] or (0, 0))
        self._spec, self._rank = spec, rank
        # Elements while they are sent, if their order is not that in memory.
        self._staged: torch.Tensor | None = None
        self.take(tensor)

    def take(self, tensor: torch.Tensor) -> None:
        """Locate the parameter's elements in the memory that it has now."""
        storage: Any = tensor.untyped_storage()
        before = references(storage)
        whole: Any = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        self.lie_in(whole.set_(storage, 0, (tensor.numel(),)))
        self.bytes = {} if self._spec.cut is not None else self._spec.parts(self._base)
        self.version = tensor._version
        # References to the memory while only the parameter and this member refer to it.
        self._alone = references(storage) - before + OF_A_PARAMETER

    @property
    def elements(self) -> torch.Tensor:
        """Return this rank's elements in the whole.

        With a cut, they are a copy in the order of the cut, except while shards travel.
        """
        if self._spec.cut is None:
            return self._base[slice(*self.own)]
        if self._staged is not None:
            return self._staged[slice(*self.own)]
        return self._spec.own(self._base.view(self._kind[1]), self._rank)

    def begin_share(self) -> None:
        """Prepare `bytes` and `elements` for the shards of all ranks."""
        if self._spec.cut is not None:
            self._staged = torch.empty_like(self._base)
            self.bytes = self._spec.parts(self._staged)

    def end_share(self) -> None:
        """Put the shards of all ranks in place, after all have arrived."""
        staged, self._staged = self._staged, None
        if self._spec.cut is not None and staged is not None:
            self._spec.cut.put_back(staged, self._base.view(self._kind[1]))
            self.bytes = {}

    def moved(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata != self.cdata

    @property
    def held(self) -> bool:
        """Return whether another tensor aliases the memory of the whole parameter."""
        alone = self._alone if self.ref() is not None else self._alone - 1
        return references(self._storage) > alone

    @property
    def there(self) -> bool:
        """Return whether the whole parameter has memory."""
        return self._storage.nbytes() > 0

    def make_room(self) -> None:
        """Allocate the memory of the whole; new elements are undefined."""
        if not self.there:
            self._storage.resize_(self._base.numel() * self._base.element_size())

    def free(self) -> bool:
        """Free the memory.

        Memory that numpy has seen, or that several processes share, cannot be resized; the parameter gets
        other memory then.

        Returns:
            whether the parameter had to be given other memory.
        """
        fixed = not self._storage.resizable() or (not self._base.is_cuda and self._storage.is_shared())
        if fixed:
            dtype, shape, stride, device = self._kind
            tensor, fresh = self.ref(), torch.empty_strided(shape, stride, dtype=dtype, device=device)
            if tensor is not None:
                tensor.data = fresh
            self.take(fresh if tensor is None else tensor)
        self._storage.resize_(0)
        return fixed


@final
class CopiedUnit(Unit):
    """A unit in memory of this rank's own, whole when it is created.

    Args:
        home: placement of shards.
        parts: existing shards, one for each member; the members begin without elements then.
    """

    def __init__(
        self,
        number: int,
        members: Sequence[CopiedMember],
        comm: Comm,
        home: Home,
        parts: Sequence[torch.Tensor] | None = None,
    ) -> None:
        super().__init__(number, members, comm, whole=parts is None)
        self._home = home
        self._coming: Pending | None = None
        if parts is not None:
            self.aliased = True
            for member, part in zip(members, parts, strict=True):
                member.part = part
            self._free()
            return
        sizes = [stop - start for start, stop in (member.own for member in members)]
        # One memory for all parts, so that they are few blocks.
        parts = home.room(sum(sizes), members[0].elements).split(sizes)
        for member, part in zip(members, parts, strict=True):
            member.part = part
        self._keep()

    def tell(self, census: Census) -> None:
        for member in self.members:
            census.count("parameters", member.part)

    def start(self) -> None:
        self._keep_lingering()
        for member in self.members:
            member.make_room()
        self._coming = self._complete()

    def gather(self) -> None:
        if self._coming is None:
            self.start()
        self._arrive()
        self.whole, self.lingers = True, False

    def rest(self) -> bool:
        """Reshard; memory with a remaining view of it is freed later."""
        self._arrive()
        if self.written:
            self._keep()
        self.whole, self.written = False, False
        self.lingers = any(member.held for member in self.members)
        return not self.lingers and self._free()

    def let_go(self) -> bool:
        if not self.lingers or any(member.held for member in self.members):
            return False
        self._keep_lingering()
        self.lingers = False
        return self._free()

    def takes_over(self, member: CopiedMember, tensor: torch.Tensor) -> bool:
        member.take(tensor)
        return True

    def begin_update(self) -> None:
        self._keep_lingering()

    def end_update(self) -> None:
        """Send updated elements to units that are aliased on some rank. A collective."""
        for member in self.members:
            member.make_room()
        self._coming = self._complete()
        self._arrive()
        if not self.lingers:
            self._free()

    def _keep_lingering(self) -> None:
        """Keep elements that were written to a view, unless shards may be newer."""
        if self.lingers and not self.aliased:
            self._keep()

    def _keep(self) -> None:
        self._home.down(
            [member.part for member in self.members], [member.elements for member in self.members]
        )

    def _arrive(self) -> None:
        coming, self._coming = self._coming, None
        if coming is None:
            return
        coming.wait()
        for member in self.members:
            member.end_share()

    def _complete(self) -> Pending:
        """Start to put every rank's part into the whole."""
        there = [member for member in self.members if member.there]
        for member in there:
            member.begin_share()
        self._home.up([member.elements for member in there], [member.part for member in there])
        return self._comm.share_async(by_rank((each.bytes for each in self.members), self._comm.world_size))

    def _free(self) -> bool:
        moved = [member.free() for member in self.members]
        return any(moved)


def copy_unit(
    number: int, tensors: Sequence[torch.Tensor], specs: Sequence[ShardSpec], comm: Comm, home: Home
) -> CopiedUnit:
    """Make a unit of whole parameters."""
    pairs = zip(tensors, specs, strict=True)
    return CopiedUnit(number, [CopiedMember(tensor, spec, comm.rank) for tensor, spec in pairs], comm, home)
