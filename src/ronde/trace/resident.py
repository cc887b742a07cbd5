"""Interface of holders of state, for accounts of this rank's memory.

Objects that keep parameters, gradients or optimizer state elsewhere than in the tensors that a script sees
(in shards, in buckets, on one owner) are a `Resident`; the summary of a run and `ronde bench memory` ask
them.
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
    """Something that holds state on this rank."""

    def tell(self, census: Census) -> None:
        """Count current state. Not a collective: ranks may be asked one by one."""
        ...
