"""Interface of objects with state, for counts of this rank's memory.

Objects that keep parameters, gradients or optimizer state outside of the tensors that a script sees (in
shards, in buckets, on one owner) implement `Resident`. The summary of a run and `ronde bench memory` use it.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, get_args, runtime_checkable

__all__ = ["KINDS", "Census", "Kind", "Resident"]

Kind = Literal["parameters", "gradients", "optimizer", "buckets", "activations"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Census(Protocol):
    """Count of bytes by kind, shared memory once.

    Memory that tensors share is counted for the kind that comes first.
    """

    def count(self, kind: Kind, tensor: Any) -> None:
        """Count the whole storage of a tensor, unless it has been counted."""
        ...

    def count_at(self, kind: Kind, address: int, nbytes: int) -> None:
        """Count memory at an address, unless it has been counted."""
        ...

    def outside(self, tensor: Any) -> None:
        """Exclude a tensor, counted before or after: its memory is outside of the allocator."""
        ...

    def add(self, kind: Kind, nbytes: int) -> None:
        """Add bytes that nothing else can count: temporary ones, or (negative) another kind's."""
        ...


@runtime_checkable
class Resident(Protocol):
    """Object that keeps state on this rank."""

    def tell(self, census: Census) -> None:
        """Count current state. Not a collective: one rank alone may call it."""
        ...
