"""Along one dimension of a tensor: which row of the batch each index belongs to."""

from __future__ import annotations

import functools

import torch

from ronde.rowwise.rows import Counts

__all__ = ["Order", "Orders"]


class Order:
    """Rows along a dimension; those made by `Orders` are one object where they are equal.

    Attributes:
        rows: the number of the row of each index, on the host.
    """

    def __init__(self, rows: torch.Tensor, counts: Counts) -> None:
        self.rows = rows
        self._counts = counts
        self._few: Order | None = None
        self._places: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return self.rows.shape[0]

    @functools.cached_property
    def is_even(self) -> bool:
        """Whether each row of the batch is in it, all equally often."""
        often = torch.bincount(self.rows, minlength=self._counts.mine)
        return bool((often == often[0]).all())

    @functools.cached_property
    def repeats(self) -> tuple[int, int] | None:
        """`outer`, `inner`, where it has `outer * rows * inner` indices in this order; None for any other."""
        mine = self._counts.mine
        if not self.is_even:
            return None
        others = (self.rows != self.rows[0]).nonzero()
        inner = int(others[0]) if len(others) else len(self)
        outer, rest = divmod(len(self), mine * inner)
        expected = torch.arange(mine, device="cpu").repeat_interleave(inner).repeat(outer)
        return None if rest or not torch.equal(expected, self.rows) else (outer, inner)

    def places(self, part: int) -> torch.Tensor:
        """Where the rows of a part lie."""
        if part not in self._places:
            few, first, _ = self._counts.parts
            low, high = ((0, few), (0, first), (first, few))[part]
            self._places[part] = ((self.rows >= low) & (self.rows < high)).nonzero().flatten()
        return self._places[part]

    def pick(self, tensor: torch.Tensor, axis: int, part: int) -> torch.Tensor:
        """The rows of a part, as a view where one exists."""
        places = self.places(part)
        length = places.shape[0]
        if length and int(places[-1]) - int(places[0]) == length - 1:
            return tensor.narrow(axis, int(places[0]), length)
        return tensor.index_select(axis, places.to(tensor.device))

    @property
    def few(self) -> Order:
        """The order of the few first rows."""
        if self._few is None:
            self._few = Order(self.rows[self.places(0)], self._counts)
        return self._few


class Orders:
    """All orders of an observed call.

    Attributes:
        batch: that of the batch itself: each row once, in order.
    """

    def __init__(self, counts: Counts) -> None:
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
        """Each row so many times one after the other, and all of that again."""
        return self.of(torch.arange(self._counts.mine, device="cpu").repeat_interleave(inner).repeat(outer))
