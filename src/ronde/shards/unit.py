"""A unit: parameters that are gathered and freed together; each rank keeps a shard."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.comm.buffer import references
from ronde.comm.process_group import Comm
from ronde.trace.resident import Census

__all__ = [
    "LEAST_BYTES",
    "OF_A_PARAMETER",
    "Member",
    "Saved",
    "Unit",
    "can_be_sharded",
    "is_held",
    "of_several_processes",
]

LEAST_BYTES = 1 << 20
"""Parameters smaller than this together are one unit with their neighbours."""


class Saved:
    """Token held by everything that autograd has saved of one member."""

    __slots__ = ("__weakref__",)


class Member(ABC):
    """One parameter of a unit.

    Attributes:
        ref: the parameter, held weakly; its unit exists as long as any rank may have it.
        own: the first and the last of this rank's elements of it, perhaps none.
        part: shard of this rank, flat, apart from the whole; the optimizer updates it.
        cdata: identifies the memory of the whole.
        version: version of the parameter when its elements were last complete.
    """

    __slots__ = ("_alone", "_base", "_kind", "_saved", "_storage", "cdata", "own", "part", "ref", "version")

    def __init__(self, tensor: torch.Tensor, own: tuple[int, int]) -> None:
        self.ref = weakref.ref(tensor)
        self.own = own
        self.part: torch.Tensor = torch.empty(0)
        self.version = tensor._version
        self._kind = tensor.dtype, tensor.shape, tensor.stride(), tensor.device
        self._saved: Callable[[], Saved | None] = lambda: None

    def lie_in(self, base: torch.Tensor) -> None:
        """Place the whole in the memory of a flat tensor."""
        self._base = base
        self._storage: Any = base.untyped_storage()
        self.cdata: int = self._storage._cdata
        # References to the memory while only this member has any.
        self._alone = references(self._storage)

    @property
    @abstractmethod
    def elements(self) -> torch.Tensor:
        """Elements of this rank in the whole parameter."""

    @property
    def numel(self) -> int:
        return self._base.numel()

    def stands(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor still has the properties that were cut, in any memory."""
        return self._kind == (tensor.dtype, tensor.shape, tensor.stride(), tensor.device)

    def view(
        self, size: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Make a tensor in the whole parameter's memory."""
        empty: Any = torch.empty(0, dtype=dtype, device=self._base.device)
        return empty.set_(self._storage, offset, size, stride)

    def covers(self, size: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype) -> bool:
        """Return whether these are the geometry and dtype of the whole parameter.

        False for a view that is cut or laid out otherwise.
        """
        return (dtype, size, stride, offset) == (*self._kind[:3], 0)

    def save(self) -> Saved:
        """Return a token for autograd to hold as long as it saves the member."""
        found = self._saved()
        if found is None:
            found = Saved()
            self._saved = weakref.ref(found)
        return found

    @property
    def is_saved(self) -> bool:
        """Return whether autograd has saved a tensor of this member, on this rank."""
        return self._saved() is not None

    @abstractmethod
    def moved(self, tensor: torch.Tensor) -> bool:
        """Return whether the script has given the parameter other memory."""


class Unit(ABC):
    """Members of one dtype and device.

    Attributes:
        members: its parameters.
        number: index in the order in which units were made, the same on all ranks.
        whole: whether all members have all their elements; the same on all ranks.
        written: whether elements may have been changed while it was whole.
        lingers: whether it is resharded, but a view of its memory still exists on this rank.
        aliased: whether its shards belong to another unit: scripts write to that one, and models read this
            one.
    """

    def __init__(self, number: int, members: Sequence[Any], comm: Comm, *, whole: bool) -> None:
        self.number = number
        self.members = list(members)
        self.whole = whole
        self.written = False
        self.lingers = False
        self.aliased = False
        self._comm = comm

    @property
    def parameters(self) -> list[tuple[Any, Any]]:
        """Members with a live parameter, each with the parameter."""
        found = [(member, member.ref()) for member in self.members]
        return [(member, tensor) for member, tensor in found if tensor is not None]

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy writes to an aliased whole into this rank's shards, without other ranks."""
        if self.lingers:
            for member in self.members:
                member.part.copy_(member.elements)

    @abstractmethod
    def tell(self, census: Census) -> None:
        """Count this rank's shards; whole parameters are counted elsewhere."""

    @abstractmethod
    def start(self) -> None:
        """Start a gather, which `gather` completes or `rest` drops. A collective."""

    @abstractmethod
    def gather(self) -> None:
        """Complete the elements of all members. A collective."""

    @abstractmethod
    def rest(self) -> bool:
        """Reshard. A collective.

        Returns:
            whether members have other memory now.
        """

    @abstractmethod
    def let_go(self) -> bool:
        """Free the memory of a resharded unit, once nothing on this rank aliases it.

        Returns:
            whether members have other memory now.
        """

    @abstractmethod
    def takes_over(self, member: Any, tensor: torch.Tensor) -> bool:
        """Adopt memory that the script has given a parameter. A collective.

        Returns:
            False where that is impossible.
        """

    @abstractmethod
    def begin_update(self) -> None:
        """Prepare an update of shards, while some rank aliases the whole. A collective."""

    @abstractmethod
    def end_update(self) -> None:
        """Complete an update of shards that some rank aliased as a whole. A collective."""


def can_be_sharded(tensor: torch.Tensor) -> bool:
    """Return whether a parameter is plain, fills its memory, and has a version.

    Memory that several processes share stays as it is: they read its new values.
    """
    if type(tensor) is not torch.nn.Parameter or tensor.storage_offset() or tensor.is_inference():
        return False
    fills = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return fills and not of_several_processes(tensor)


def of_several_processes(tensor: torch.Tensor) -> bool:
    """Return whether `share_memory()` was called on a CPU tensor.

    On a CUDA device torch answers True in any case.
    """
    return tensor.device.type == "cpu" and tensor.is_shared()


def is_held(tensor: torch.Tensor) -> bool:
    """Return whether the memory of the caller's parameter has any other alias."""
    return references(tensor.untyped_storage()) > OF_A_PARAMETER


# A name, so that the tensor outlives the next line.
_ANY = torch.nn.Parameter(torch.empty(1))
OF_A_PARAMETER = references(_ANY.untyped_storage())
"""References to the memory of a parameter that nobody else lies in, asked for by a name of the storage."""
