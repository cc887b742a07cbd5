"""A unit: parameters that are gathered and let go of together, each rank keeping its part of them."""

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
    """Held by all that autograd has saved of one member."""

    __slots__ = ("__weakref__",)


class Member(ABC):
    """One parameter of a unit.

    Attributes:
        ref: the parameter, held weakly; its unit stands as long as any rank may have it.
        own: the first and the last of this rank's elements of it, perhaps none.
        part: this rank's elements, flat, apart from the whole; what the optimizer updates.
        cdata: tells the memory of the whole from other memory.
        version: of the parameter when its elements were last complete.
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
        """The whole lies in the memory of a flat tensor."""
        self._base = base
        self._storage: Any = base.untyped_storage()
        self.cdata: int = self._storage._cdata
        # What refers to the memory when only this member does.
        self._alone = references(self._storage)

    @property
    @abstractmethod
    def elements(self) -> torch.Tensor:
        """This rank's elements in the whole parameter."""

    @property
    def numel(self) -> int:
        return self._base.numel()

    def stands(self, tensor: torch.Tensor) -> bool:
        """Whether it is still the kind of tensor that was cut, if perhaps in other memory."""
        return self._kind == (tensor.dtype, tensor.shape, tensor.stride(), tensor.device)

    def view(
        self, size: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """A tensor in the whole parameter's memory."""
        empty: Any = torch.empty(0, dtype=dtype, device=self._base.device)
        return empty.set_(self._storage, offset, size, stride)

    def covers(self, size: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype) -> bool:
        """Whether this is the whole parameter, and no view of it that is cut or laid otherwise."""
        return (dtype, size, stride, offset) == (*self._kind[:3], 0)

    def save(self) -> Saved:
        """Autograd saves something of it, and is to hold this as long."""
        found = self._saved()
        if found is None:
            found = Saved()
            self._saved = weakref.ref(found)
        return found

    @property
    def is_saved(self) -> bool:
        """Whether autograd has saved something of it, on this rank."""
        return self._saved() is not None

    @abstractmethod
    def moved(self, tensor: torch.Tensor) -> bool:
        """Whether the script has laid the parameter elsewhere."""


class Unit(ABC):
    """Members of one dtype and device.

    Attributes:
        members: its parameters.
        number: in the order in which units were made, the same on all ranks.
        whole: elements of all members are there, for anybody to use; the same on all ranks.
        written: while it was whole, somebody may have changed elements.
        lingers: it is not whole, but somebody on this rank holds a view of its memory still.
        aliased: its parts are those of another unit, by which scripts write to them; here models read.
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
        """Members whose parameter is there still."""
        found = [(member, member.ref()) for member in self.members]
        return [(member, tensor) for member, tensor in found if tensor is not None]

    @torch.no_grad()
    def refresh(self) -> None:
        """Have in this rank's parts what was written to what lingers; no other rank is needed."""
        if self.lingers:
            for member in self.members:
                member.part.copy_(member.elements)

    @abstractmethod
    def tell(self, census: Census) -> None:
        """Count this rank's parts; what is whole is there to be counted."""

    @abstractmethod
    def start(self) -> None:
        """Begin what `gather` completes, or `rest` drops; all ranks come here."""

    @abstractmethod
    def gather(self) -> None:
        """Have the elements of all members there; all ranks come here."""

    @abstractmethod
    def rest(self) -> bool:
        """It is whole no more; all ranks come here. Returns whether members lie in other memory now."""

    @abstractmethod
    def let_go(self) -> bool:
        """Let go of what lingers, if nobody on this rank holds any of it now; returns as `rest`."""

    @abstractmethod
    def takes_over(self, member: Any, tensor: torch.Tensor) -> bool:
        """Go by where the script has laid a parameter; False where that cannot be. All ranks come here."""

    @abstractmethod
    def begin_update(self) -> None:
        """Parts are about to be updated, and on some rank it lingers; all ranks come here."""

    @abstractmethod
    def end_update(self) -> None:
        """Parts have been updated, and on some rank it lingered; all ranks come here."""


def can_be_sharded(tensor: torch.Tensor) -> bool:
    """Whether a parameter is a plain one that fills its memory, and has a version.

    What several processes have stays where it is: they read what it becomes.
    """
    if type(tensor) is not torch.nn.Parameter or tensor.storage_offset() or tensor.is_inference():
        return False
    fills = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return fills and not of_several_processes(tensor)


def of_several_processes(tensor: torch.Tensor) -> bool:
    """Whether `share_memory()` was called; of memory on a CUDA device torch says so in any case."""
    return tensor.device.type == "cpu" and tensor.is_shared()


def is_held(tensor: torch.Tensor) -> bool:
    """Whether anybody but a parameter, which the caller has, lies in its memory."""
    return references(tensor.untyped_storage()) > OF_A_PARAMETER


# It has a name, or it would be gone by the next line.
_ANY = torch.nn.Parameter(torch.empty(1))
OF_A_PARAMETER = references(_ANY.untyped_storage())
"""References to the memory of a parameter that nobody else lies in, asked for by a name of the storage."""
