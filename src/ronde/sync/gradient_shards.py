"""Gradients of which each rank holds a shard, until somebody asks for the whole."""

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
"""The first element of a run, and the one behind its last."""


class Spans(Protocol):
    """By rank its run of elements of a tensor; None without any."""

    def __getitem__(self, rank: int, /) -> Span | None: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Span | None]: ...

    def is_first(self, rank: int) -> bool:
        """Whether no earlier rank has the same elements as this one."""
        ...


class Wait(Protocol):
    """Something under way."""

    def wait(self) -> None:
        """Return when it is over."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class HeldGradient:
    """A gradient in shards.

    Attributes:
        number: the same on all ranks, in the order in which gradients came.
        spans: the elements of each rank.
        part: this rank's elements, flat or sparse; None where a server has them.
        owner: this rank's place in `spans`.
    """

    number: int
    leaf: Leaf
    spans: Spans
    part: torch.Tensor | None
    owner: int

    @property
    def span(self) -> Span:
        """This rank's elements."""
        return self.spans[self.owner] or (0, 0)


class ReduceTarget(Protocol):
    """Takes the sums over ranks of gradients that are reduced in shards.

    Attributes:
        owner: this rank's place in spans.
        leave_device: whether shards that are sent home make room on the device.
    """

    @property
    def owner(self) -> int: ...

    @property
    def leave_device(self) -> bool: ...

    def divide(self, tensors: Sequence[torch.Tensor]) -> Sequence[Spans | None]:
        """The spans of leaves that come together; None for a leaf that is not divided."""
        ...

    def reduce(
        self, spans: Sequence[Spans], out: torch.Tensor, pieces: Sequence[Sequence[torch.Tensor]]
    ) -> Wait:
        """Begin to sum over ranks the elements of each owner.

        Args:
            spans: of each of these gradients.
            out: flat, this rank's share of the sum; it is there when the result has been waited for.
            pieces: for each owner, of this rank's gradients the elements that are the owner's.
        """
        ...

    def send_home(self, elements: torch.Tensor) -> torch.Tensor:
        """Begin to move this rank's elements of a mean to their home."""
        ...

    def wait_for_sent(self) -> None:
        """Wait until all that has been sent home is there."""
        ...

    def add(self, leaf: Leaf, spans: Spans, part: torch.Tensor) -> None:
        """Accumulate a shard of the mean of one backward, which has been sent home."""
        ...


class ScatteredGradients(ReduceTarget, Protocol):
    """Shards to which gradients are reduced, as `GradientShards` describes them."""

    away: bool

    def part(self, tensor: torch.Tensor) -> torch.Tensor | None: ...

    def own(self, tensor: torch.Tensor, whole: torch.Tensor) -> torch.Tensor: ...

    def scale(self, factor: float | torch.Tensor) -> None: ...

    def whole(self, tensor: torch.Tensor) -> torch.Tensor | None: ...

    def restore(self) -> None: ...


class GradientShards(ABC):
    """By tensor, this rank's shard of its gradient. To read one whole is a collective."""

    #: Whether this rank has none of the elements: servers have them.
    away: bool

    def __init__(self) -> None:
        self._aside = False

    @abstractmethod
    def held(self, tensor: torch.Tensor) -> HeldGradient | None:
        """The shard of a tensor's gradient; None where the gradient is whole, or not there."""

    @abstractmethod
    def drop(self, tensor: torch.Tensor) -> None:
        """Forget a gradient."""

    @abstractmethod
    def scale(self, factor: float | torch.Tensor) -> None:
        """Multiply all shards in place."""

    @abstractmethod
    def own(self, tensor: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """This rank's elements of something of the tensor's shape; all of it where the gradient is whole."""

    @abstractmethod
    def whole(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Gather a gradient, which is an ordinary one from then on; None without a shard. A collective."""

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
        """Whether there may be a shard."""

    @final
    def __bool__(self) -> bool:
        return not self._aside and self._any()

    @final
    def __contains__(self, tensor: torch.Tensor) -> bool:
        return self.held(tensor) is not None

    @final
    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, it looks as if there were none."""
        self._aside = True
        try:
            yield
        finally:
            self._aside = False

    @final
    def part(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """This rank's elements, flat and perhaps none; None where the gradient is whole, or elsewhere."""
        held = self.held(tensor)
        return None if held is None else held.part

    @final
    def parts(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """This rank's shards of the gradients of `tensors`."""
        return [part for tensor in tensors if (part := self.part(tensor)) is not None]

    @final
    def counted(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """As `parts`, less those of which an earlier rank has a copy: ranks together have each once."""
        found = [each for tensor in tensors if (each := self.held(tensor)) is not None]
        return [each.part for each in found if each.part is not None and each.spans.is_first(each.owner)]

    @final
    def kinds(self, tensors: Iterable[torch.Tensor]) -> set[tuple[torch.dtype, torch.device]]:
        """Dtypes and devices of these tensors' sharded gradients, as a script sees them."""
        found = [self.held(tensor) for tensor in tensors]
        return {(held.leaf.dtype, held.leaf.device) for held in found if held is not None}

    @final
    @torch.no_grad()
    def zero(self, tensors: Iterable[torch.Tensor]) -> None:
        """Set sharded gradients to zero; those on servers are gathered first."""
        for tensor in tensors:
            held = self.held(tensor)
            if held is None:
                continue
            if held.part is None:
                self.whole(tensor)
            else:
                held.part.zero_()
