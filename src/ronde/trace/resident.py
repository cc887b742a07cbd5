"""How a way of holding state tells what of it lies in this rank's memory.

Whatever keeps parameters, gradients or optimizer state elsewhere than in the tensors that a script sees (in
parts, in buckets, on one owner) is a `Resident`; the summary of a run and `ronde bench memory` ask it.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, get_args, runtime_checkable

__all__ = ["KINDS", "Census", "Kind", "Resident"]

Kind = Literal["parameters", "gradients", "optimizer", "buckets", "activations"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Census(Protocol):
    """Counts bytes by kind; memory that tensors share is counted once, for the kind that comes first."""

    def count(self, kind: Kind, tensor: Any) -> None:
        """The whole storage of a tensor, unless it has been counted."""
        ...

    def count_at(self, kind: Kind, address: int, nbytes: int) -> None:
        """Memory that begins at an address, unless it has been counted."""
        ...

    def outside(self, tensor: Any) -> None:
        """This tensor, counted before or after, lies in memory that is none of the allocator's."""
        ...

    def add(self, kind: Kind, nbytes: int) -> None:
        """Bytes that no other can count: what was held for a while, or (negative) another kind's part."""
        ...


@runtime_checkable
class Resident(Protocol):
    """Something that holds state on this rank."""

    def tell(self, census: Census) -> None:
        """Count what is held now. No collective: ranks may be asked one by one."""
        ...
