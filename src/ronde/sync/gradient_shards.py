"""Gradients sharded over ranks, until the whole is read."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, final

import torch

from ronde.sync.leaf import Leaf
from ronde.trace.resident import Census

__all__ = ["GradientShards", "HeldGradient", "ReduceTarget", "ScatteredGradients", "Span", "Spans", "Wait"]

Span = tuple[int, int]
"""Range of elements: the first one, and the one after the last."""


class Spans(Protocol):
    """Range of elements of a tensor on each rank; None for none."""

    def __getitem__(self, rank: int, /) -> Span | None: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Span | None]: ...

    def is_first(self, rank: int) -> bool:
        """Return whether no earlier rank has the same elements as this one."""
        ...


class Wait(Protocol):
    """Pending operation."""

    def wait(self) -> None:
        """Wait until the operation is complete."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class HeldGradient:
    """Gradient in shards.

    Attributes:
        number: index in the order of gradients, the same on all ranks.
        spans: the elements of each rank.
        part: elements of this rank, flat or sparse; None where a server has them.
        owner: index of this rank in `spans`.
    """

    number: int
    leaf: Leaf
    spans: Spans
    part: torch.Tensor | None
    owner: int

    @property
    def span(self) -> Span:
        """Range of elements of this rank."""
        return self.spans[self.owner] or (0, 0)


class ReduceTarget(Protocol):
    """Receives the sums over ranks of gradients that are reduced in shards.

    Attributes:
        owner: index of this rank in spans.
        leave_device: whether shards sent to their home leave the device.
    """

    @property
    def owner(self) -> int: ...

    @property
    def leave_device(self) -> bool: ...

    def divide(self, tensors: Sequence[torch.Tensor]) -> Sequence[Spans | None]:
        """Return the spans of leaves of one bucket; None for an undivided leaf."""
        ...

    def reduce(
        self, spans: Sequence[Spans], out: torch.Tensor, pieces: Sequence[Sequence[torch.Tensor]]
    ) -> Wait:
        """Start to sum over ranks the elements of each owner.

        Args:
            spans: spans of each of these gradients.
            out: flat, this rank's share of the sum; valid after waiting for the result.
            pieces: elements of this rank's gradients for each owner.
        """
        ...

    def send_home(self, elements: torch.Tensor) -> torch.Tensor:
        """Start to move this rank's elements of a mean to where shards live."""
        ...

    def wait_for_sent(self) -> None:
        """Wait until all moves to the home are complete."""
        ...

    def add(self, leaf: Leaf, spans: Spans, part: torch.Tensor) -> None:
        """Add a shard of the mean gradient of one backward, already at its home."""
        ...


class ScatteredGradients(ReduceTarget, Protocol):
    """Shards to which gradients are reduced; methods as in `GradientShards`."""

    away: bool

    def part(self, tensor: torch.Tensor) -> torch.Tensor | None: ...

    def own(self, tensor: torch.Tensor, whole: torch.Tensor) -> torch.Tensor: ...

    def scale(self, factor: float | torch.Tensor) -> None: ...

    def whole(self, tensor: torch.Tensor) -> torch.Tensor | None: ...

    def restore(self) -> None: ...


class GradientShards(ABC):
    """Shards of gradients on this rank, by tensor. Reading a whole gradient is a collective."""

    #: Whether this rank has none of the elements: servers have them.
    away: bool

    def __init__(self) -> None:
        self._aside = False

    @abstractmethod
    def held(self, tensor: torch.Tensor) -> HeldGradient | None:
        """Return the shard of a tensor's gradient; None for a whole or missing one."""

    @abstractmethod
    def drop(self, tensor: torch.Tensor) -> None:
        """Discard a gradient."""

    @abstractmethod
    def scale(self, factor: float | torch.Tensor) -> None:
        """Multiply all shards in place."""

    @abstractmethod
    def own(self, tensor: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's elements of a value with the tensor's shape.

        All of it where the gradient is whole.
        """

    @abstractmethod
    def whole(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Gather a gradient, which is an ordinary one from then on. A collective.

        Returns None for a tensor without a shard.
        """

    @abstractmethod
    def restore(self) -> None:
        """Make all gradients whole. A collective."""

    @abstractmethod
    def agree(self, tensor: torch.Tensor, spans: Spans) -> None:
        """Gather a gradient if an update by these spans cannot use its shards. A collective."""

    @abstractmethod
    def tell(self, census: Census) -> None:
        """Count this rank's shards."""

    @abstractmethod
    def _any(self) -> bool:
        """Return whether any gradient may be sharded."""

    @final
    def __bool__(self) -> bool:
        return not self._aside and self._any()

    @final
    def __contains__(self, tensor: torch.Tensor) -> bool:
        return self.held(tensor) is not None

    @final
    @contextmanager
    def aside(self) -> Iterator[None]:
        """Hide all shards inside the `with` block."""
        self._aside = True
        try:
            yield
        finally:
            self._aside = False

    @final
    def part(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return this rank's elements, flat and perhaps empty; None without a shard here."""
        held = self.held(tensor)
        return None if held is None else held.part

    @final
    def parts(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return this rank's shards of the gradients of `tensors`."""
        return [part for tensor in tensors if (part := self.part(tensor)) is not None]

    @final
    def counted(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return `parts` without copies of elements that an earlier rank has.

        Ranks together then have each element once.
        """
        found = [each for tensor in tensors if (each := self.held(tensor)) is not None]
        return [each.part for each in found if each.part is not None and each.spans.is_first(each.owner)]

    @final
    def kinds(self, tensors: Iterable[torch.Tensor]) -> set[tuple[torch.dtype, torch.device]]:
        """Return dtypes and devices of sharded gradients, as a script sees them."""
        found = [self.held(tensor) for tensor in tensors]
        return {(held.leaf.dtype, held.leaf.device) for held in found if held is not None}

    @final
    @torch.no_grad()
    def zero(self, tensors: Iterable[torch.Tensor]) -> None:
        """Set sharded gradients to zero; gradients on servers are gathered first."""
        for tensor in tensors:
            held = self.held(tensor)
            if held is None:
                continue
            if held.part is None:
                self.whole(tensor)
            else:
                held.part.zero_()
