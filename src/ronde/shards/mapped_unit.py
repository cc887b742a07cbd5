"""A unit in shared memory: its elements exist once per host.

Gathering maps the shared memory into the parameters. Each rank updates its part in memory that all ranks of
the host see. A script's writes to a whole parameter stay private to the rank until all ranks keep them. So
nothing is copied, and no rank waits, unless the script may have written.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, final

import torch

from ronde.comm.buffer import references
from ronde.comm.once_per_host import OncePerHost
from ronde.comm.process_group import Comm
from ronde.comm.split import round_up
from ronde.shards.spec import ShardSpec
from ronde.shards.unit import Member, Unit, is_held
from ronde.trace.resident import Census

__all__ = ["map_unit"]

_LINE = 64


@final
class _MappedMember(Member):
    """A parameter in the host's shared memory, without memory while its unit is resharded.

    Args:
        begin: offset of its first byte there.
    """

    __slots__ = ("_address", "_empty", "whole")

    def __init__(self, tensor: torch.Tensor, own: tuple[int, int], memory: OncePerHost, begin: int) -> None:
        super().__init__(tensor, own)
        first, last = own
        if first < last:
            at = begin + first * tensor.element_size()
            self.part = torch.frombuffer(memory.common, dtype=tensor.dtype, count=last - first, offset=at)
        else:
            self.part = torch.empty(0, dtype=tensor.dtype)
        self.part.copy_(tensor.as_strided((tensor.numel(),), (1,))[first:last])
        # The parameter's memory while its unit is resharded.
        self._empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        self._empty.untyped_storage().resize_(0)
        base = torch.frombuffer(memory.private, dtype=tensor.dtype, count=tensor.numel(), offset=begin)
        self.whole = base.as_strided(tensor.shape, tensor.stride())
        self._address = base.data_ptr()
        self.lie_in(base)

    def show(self) -> None:
        tensor: Any = self.ref()
        if tensor is not None:
            tensor.data = self.whole

    def hide(self) -> None:
        tensor: Any = self.ref()
        if tensor is not None:
            tensor.data = self._empty

    def take(self, tensor: torch.Tensor) -> None:
        """Copy the elements back from the memory that the script has given the parameter."""
        self.whole.copy_(tensor)
        self.show()
        self.version = tensor._version

    @property
    def elements(self) -> torch.Tensor:
        return self._base[slice(*self.own)]

    def moved(self, tensor: torch.Tensor) -> bool:
        # Not from the base: `share_memory_()` replaces the memory of all tensors that lie in it.
        return tensor.data_ptr() not in (0, self._address)

    @property
    def held(self) -> bool:
        """Return whether tensors besides the parameter alias the memory of the whole."""
        return references(self._storage) > self._alone


@final
class MappedUnit(Unit):
    """A unit in shared memory of the host, whole when it is created."""

    def __init__(
        self, number: int, members: Sequence[_MappedMember], comm: Comm, memory: OncePerHost
    ) -> None:
        super().__init__(number, members, comm, whole=False)
        self._memory = memory
        comm.barrier()
        self.gather()

    def tell(self, census: Census) -> None:
        for member in self.members:
            census.count("parameters", member.part)
            census.outside(member.part)
            census.outside(member.whole)

    def start(self) -> None:
        """Return at once: no message is needed."""

    def gather(self) -> None:
        for member in self.members:
            member.show()
        self.whole = True

    def rest(self) -> bool:
        if self.written:
            self._keep()
        self.whole, self.written = False, False
        for member in self.members:
            member.hide()
        # Writes until then must be detected at the next update, which keeps them.
        self.lingers = self.lingers or any(member.held for member in self.members)
        return False

    def let_go(self) -> bool:
        """Return False: this rank has no private memory to free."""
        return False

    def takes_over(self, member: _MappedMember, tensor: torch.Tensor) -> bool:
        """Refuse memory with other aliases, because these would miss later changes.

        The same holds if something aliases the parameter's former memory, which must stay unchanged: a script
        may swap averages with its parameters, and swap them back.
        """
        if self._comm.votes([is_held(tensor) or member.held]) != [0]:
            return False
        member.take(tensor)
        return True

    def begin_update(self) -> None:
        self._keep()
        self.lingers = any(member.held for member in self.members)

    def end_update(self) -> None:
        """Return at once: views of the whole are views of the shards."""

    def _keep(self) -> None:
        """Copy this rank's writes to its part, between two barriers.

        Other ranks may not read the part before they have written the same, nor after later writes.
        """
        self._comm.barrier()
        for member in self.members:
            member.part.copy_(member.elements)
        self._comm.barrier()
        self._memory.forget_writes()


def map_unit(
    number: int, tensors: Sequence[torch.Tensor], specs: Sequence[ShardSpec], comm: Comm
) -> MappedUnit | None:
    """Move whole parameters into shared memory of the host. A collective.

    Args:
        specs: each rank's elements of each.

    Returns:
        None, on all ranks, if ranks do not share a host, if memory is short, or if something else refers to
        the present memory of parameters.
    """
    if not comm.shares_host or any(tensor.device.type != "cpu" for tensor in tensors):
        return None
    if comm.votes([any(is_held(tensor) for tensor in tensors)]) != [0]:
        return None
    size = tensors[0].element_size()
    ends = accumulate((round_up(tensor.numel() * size, _LINE) for tensor in tensors), initial=0)
    *begins, nbytes = ends
    own = [each[comm.rank] or (0, 0) for each in specs]
    spans = [
        (begin + size * first, begin + size * last) for begin, (first, last) in zip(begins, own, strict=True)
    ]
    memory = comm.share_once(nbytes, [span for span in spans if span[0] < span[1]])
    if memory is None:
        return None
    members = [
        _MappedMember(tensor, span, memory, begin)
        for tensor, span, begin in zip(tensors, own, begins, strict=True)
    ]
    return MappedUnit(number, members, comm, memory)
