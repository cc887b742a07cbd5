"""Marks of tensors: the batch row of each entry, or another origin.

Marks belong to memory, not to tensor objects: `.data`, `detach` and autograd's copies are other objects for
the same numbers. A tensor without a mark does not depend on the batch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ronde.rowwise.rows_int import RowCounts
from ronde.rowwise.verdict import MixesRows, meet

__all__ = [
    "Drawn",
    "Label",
    "Mark",
    "Marks",
    "Mixed",
    "Order",
    "Orders",
    "Relative",
    "address",
    "along",
    "labelled",
]


class Order:
    """Batch rows along a dimension, interned by `Orders`.

    Attributes:
        rows: row number of each index, on the host.
    """

    def __init__(self, rows: torch.Tensor, counts: RowCounts) -> None:
        self.rows = rows
        self._counts = counts
        self._places: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return self.rows.shape[0]

    @functools.cached_property
    def is_even(self) -> bool:
        """Return whether the order has every row of the batch, all equally often."""
        often = torch.bincount(self.rows, minlength=self._counts.mine)
        return bool((often == often[0]).all())

    @functools.cached_property
    def repeats(self) -> tuple[int, int] | None:
        """Return (outer, inner) if its rows follow a regular repetition, else None.

        Each row then comes `inner` times in a run, and the whole sequence `outer` times.
        """
        mine = self._counts.mine
        if not self.is_even:
            return None
        others = (self.rows != self.rows[0]).nonzero()
        inner = int(others[0]) if len(others) else len(self)
        outer, rest = divmod(len(self), mine * inner)
        expected = torch.arange(mine, device="cpu").repeat_interleave(inner).repeat(outer)
        return None if rest or not torch.equal(expected, self.rows) else (outer, inner)

    def places(self, part: int) -> torch.Tensor:
        """Return the indices of a part's rows."""
        if part not in self._places:
            few, first, _ = self._counts.parts
            low, high = ((0, few), (0, first), (first, few))[part]
            self._places[part] = ((self.rows >= low) & (self.rows < high)).nonzero().flatten()
        return self._places[part]

    def pick(self, tensor: torch.Tensor, axis: int, part: int) -> torch.Tensor:
        """Return the rows of a part, as a view if possible."""
        places = self.places(part)
        length = places.shape[0]
        if length and int(places[-1]) - int(places[0]) == length - 1:
            return tensor.narrow(axis, int(places[0]), length)
        return tensor.index_select(axis, places.to(tensor.device))

    @functools.cached_property
    def few(self) -> Order:
        """The order of the first few rows."""
        return Order(self.rows[self.places(0)], self._counts)


class Orders:
    """All orders of an observed call, equal ones being one object.

    Attributes:
        batch: order of the batch itself: each row once.
    """

    def __init__(self, counts: RowCounts) -> None:
        self._counts = counts
        self._known: dict[bytes, Order] = {}
        self.batch = self.of(torch.arange(counts.mine, device="cpu"))

    def of(self, rows: torch.Tensor) -> Order:
        rows = rows.contiguous()
        key = rows.numpy().tobytes()
        if key not in self._known:
            self._known[key] = Order(rows, self._counts)
        return self._known[key]

    def repeated(self, outer: int, inner: int) -> Order:
        """Return the order with runs of `inner` equal rows, all repeated `outer` times."""
        return self.of(torch.arange(self._counts.mine, device="cpu").repeat_interleave(inner).repeat(outer))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Label:
    """A mark: entries belong to rows, each row equally often.

    Attributes:
        ids: row number of each entry, in the tensor's shape; expanded, so it takes hardly any memory; on the
            host.
        axis: the only dimension along which rows change.
        order: the rows along this dimension.
    """

    ids: torch.Tensor
    axis: int
    order: Order


def along(order: Order, axis: int, shape: Sequence[int]) -> Label:
    """Make the label of a tensor with the rows `order` along `axis`."""
    places = [1] * len(shape)
    places[axis] = len(order)
    return Label(order.rows.view(places).expand(*shape), axis, order)


def labelled(ids: torch.Tensor, orders: Orders, before: Label) -> Label | None:
    """Make the label of a tensor with these row numbers as entries.

    None if rows change along several dimensions, or do not occur equally often.

    Args:
        before: label of a tensor that the ids may be a view of.
    """
    axes = [axis for axis in range(ids.dim()) if ids.shape[axis] > 1 and ids.stride(axis)]
    rows = ids[tuple(slice(None) if axis in axes else 0 for axis in range(ids.dim()))]
    if len(axes) > 1:
        changing = [place for place in range(rows.dim()) if _changes_along(rows, place)]
        rows = rows[tuple(slice(None) if place in changing else 0 for place in range(rows.dim()))]
        axes = [axes[place] for place in changing]
    if len(axes) != 1:
        return None
    order = before.order if _is_same_view(rows, before.order.rows) else orders.of(rows)
    return Label(ids, axes[0], order) if order.is_even else None


def _changes_along(rows: torch.Tensor, dim: int) -> bool:
    return not torch.equal(rows.narrow(dim, 0, 1).expand_as(rows), rows)


def _is_same_view(rows: torch.Tensor, others: torch.Tensor) -> bool:
    return (
        len(rows) == len(others) and rows.data_ptr() == others.data_ptr() and rows.stride() == others.stride()
    )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Relative:
    """A mark: a function of the number of rows, such as `arange(len(x))`.

    Attributes:
        parts: its values for the first few rows, and for the two parts of these.
    """

    parts: tuple[torch.Tensor, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Mixed:
    """A mark: a function of several rows.

    Attributes:
        how: description, such as "sum mixes rows".
    """

    how: str


@dataclasses.dataclass(frozen=True, slots=True)
class Drawn:
    """A mark: independent of rows, but not constant across calls, e.g. a random draw.

    Attributes:
        what: description, such as "a random draw".
    """

    what: str = "a random draw"


Mark = Label | Relative | Mixed | Drawn
_Place = tuple[Any, ...]


@dataclasses.dataclass(slots=True)
class _Memory:
    """The marks of a storage. The weak reference keeps its address from being reused."""

    held: StorageWeakRef
    is_new: bool
    may_hold_rows: bool = False
    marks: dict[_Place, Mark] = dataclasses.field(default_factory=dict)


class Marks:
    """Marks of tensors by memory, and the storages allocated during the call."""

    def __init__(self) -> None:
        self._memory: dict[int, _Memory] = {}

    def of(self, tensor: torch.Tensor) -> Mark | None:
        memory = self._memory.get(address(tensor))
        return memory.marks.get(_place(tensor)) if memory is not None and memory.marks else None

    def is_new(self, tensor: torch.Tensor) -> bool:
        memory = self._memory.get(address(tensor))
        return memory is not None and memory.is_new

    def lie_beside(self, tensor: torch.Tensor) -> bool:
        """Return whether other views of the tensor's memory have marks."""
        memory = self._memory.get(address(tensor))
        return memory is not None and bool(memory.marks.keys() - {_place(tensor)})

    def made(self, tensor: torch.Tensor) -> None:
        """Record a tensor's memory as new, unless it is known."""
        storage = _storage(tensor)
        if storage is not None and storage._cdata not in self._memory:
            self._memory[storage._cdata] = _Memory(StorageWeakRef(storage), True)

    def may_hold_rows(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Return whether some of the memory was ever made from rows of the batch."""
        known = (self._memory.get(address(each)) for each in tensors)
        return any(memory is not None and memory.may_hold_rows for memory in known)

    def hold_rows(self, tensor: torch.Tensor) -> None:
        if (storage := _storage(tensor)) is not None:
            self._of(storage).may_hold_rows = True

    def put(self, tensor: torch.Tensor, mark: Mark | None) -> None:
        storage = _storage(tensor)
        if storage is None:
            if mark is not None:
                raise MixesRows(meet("sparse"))
            return
        memory = self._of(storage)
        if mark is None:
            memory.marks.pop(_place(tensor), None)
        else:
            memory.marks[_place(tensor)] = mark

    def _of(self, storage: torch.UntypedStorage) -> _Memory:
        known = self._memory.get(storage._cdata)
        if known is None:
            known = self._memory[storage._cdata] = _Memory(StorageWeakRef(storage), False)
        return known


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors lack one
        return None


def address(tensor: torch.Tensor) -> int:
    """Return a key that tensors in the same memory share."""
    known = getattr(type(tensor), "address_of_whole", None)
    if known is not None:  # a sharded parameter need not be gathered
        return known(tensor)
    storage = _storage(tensor)
    return 0 if storage is None else storage._cdata


def _place(tensor: torch.Tensor) -> _Place:
    return tensor.storage_offset(), tensor.shape, tensor.stride()
