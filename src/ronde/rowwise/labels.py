"""What is known of a tensor: which row of the batch each of its entries belongs to, or what else it is made
of.

It is known by memory, not by tensor: `.data`, `detach` and the copies that autograd makes of a tensor are
other objects for the same numbers. A tensor of which nothing is known does not depend on the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ronde.rowwise.mixes_rows import MixesRows, meet
from ronde.rowwise.order import Order, Orders

__all__ = ["Drawn", "Label", "Mark", "Marks", "Mixed", "Relative", "along", "labelled"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Label:
    """Its entries belong to rows.

    Attributes:
        ids: the number of the row of each entry; of the tensor's shape but, being expanded, of hardly any
            memory; on the host.
        axis: the one dimension along which rows change.
        order: the rows along it; None where rows change along several dimensions, or are one row only.
    """

    ids: torch.Tensor
    axis: int = 0
    order: Order | None = None


def along(order: Order, axis: int, shape: Sequence[int]) -> Label:
    """That of a tensor which has these rows along a dimension."""
    places = [1] * len(shape)
    places[axis] = len(order)
    return Label(order.rows.view(places).expand(*shape), axis, order)


def labelled(ids: torch.Tensor, orders: Orders, before: Label | None = None) -> Label:
    """That of a tensor whose entries belong to these rows.

    Args:
        before: what the ids may be a view of.
    """
    axes = [axis for axis in range(ids.dim()) if ids.shape[axis] > 1 and ids.stride(axis)]
    rows = ids[tuple(slice(None) if axis in axes else 0 for axis in range(ids.dim()))]
    if len(axes) > 1:
        changing = [place for place in range(rows.dim()) if _changes_along(rows, place)]
        rows = rows[tuple(slice(None) if place in changing else 0 for place in range(rows.dim()))]
        axes = [axes[place] for place in changing]
    if len(axes) != 1:
        return Label(ids)
    order = before.order if before else None
    if order is None or not _is_same_view(rows, order.rows):
        order = orders.of(rows)
    return Label(ids, axes[0], order)


def _changes_along(rows: torch.Tensor, dim: int) -> bool:
    return not torch.equal(rows.narrow(dim, 0, 1).expand_as(rows), rows)


def _is_same_view(rows: torch.Tensor, others: torch.Tensor) -> bool:
    return (
        len(rows) == len(others) and rows.data_ptr() == others.data_ptr() and rows.stride() == others.stride()
    )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Relative:
    """Made of the number of rows: it is another tensor for each part, as `arange(len(x))` is.

    Attributes:
        parts: what it is for the few first rows, and for the two parts of these.
    """

    parts: tuple[torch.Tensor, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Mixed:
    """Made of several rows.

    Attributes:
        how: such as "sum mixes rows".
    """

    how: str


@dataclasses.dataclass(frozen=True, slots=True)
class Drawn:
    """Made of what has nothing to do with rows, but may be something else in a later call.

    Attributes:
        what: such as "a random draw".
    """

    what: str = "a random draw"


Mark = Label | Relative | Mixed | Drawn
_Place = tuple[Any, ...]


@dataclasses.dataclass(slots=True)
class _Memory:
    """A storage: a weak reference, without which its address would be used again, and the marks in it."""

    held: StorageWeakRef
    is_new: bool
    marks: dict[_Place, Mark] = dataclasses.field(default_factory=dict)


class Marks:
    """Marks of tensors, by the memory they lie in; and which memory was handed out during the call."""

    def __init__(self) -> None:
        self._memory: dict[int, _Memory] = {}

    def of(self, tensor: torch.Tensor) -> Mark | None:
        memory = self._memory.get(address(tensor))
        return memory.marks.get(_place(tensor)) if memory is not None and memory.marks else None

    def is_new(self, tensor: torch.Tensor) -> bool:
        memory = self._memory.get(address(tensor))
        return memory is not None and memory.is_new

    def lie_beside(self, tensor: torch.Tensor) -> bool:
        """Whether other parts or views of its memory have marks."""
        memory = self._memory.get(address(tensor))
        return memory is not None and bool(memory.marks.keys() - {_place(tensor)})

    def made(self, tensor: torch.Tensor) -> None:
        """Its memory is new, unless an operation gave back what it was given."""
        storage = _storage(tensor)
        if storage is not None and storage._cdata not in self._memory:
            self._memory[storage._cdata] = _Memory(StorageWeakRef(storage), True)

    def put(self, tensor: torch.Tensor, mark: Mark | None) -> None:
        storage = _storage(tensor)
        if storage is None:
            if mark is not None:
                raise MixesRows(meet("sparse"))
            return
        memory = self._memory.get(storage._cdata)
        if memory is None:
            memory = self._memory[storage._cdata] = _Memory(StorageWeakRef(storage), False)
        if mark is None:
            memory.marks.pop(_place(tensor), None)
        else:
            memory.marks[_place(tensor)] = mark


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors have none
        return None


def address(tensor: torch.Tensor) -> int:
    """What tensors in the same memory have in common."""
    storage = _storage(tensor)
    return 0 if storage is None else storage._cdata


def _place(tensor: torch.Tensor) -> _Place:
    return tensor.storage_offset(), tensor.shape, tensor.stride()
