"""What is measured: operations on 32-bit floats, at some sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ronde.bench.collectives.size import show_size

__all__ = ["OPERATIONS", "Case", "cases"]

OPERATIONS = ("all-reduce", "reduce-scatter", "all-gather", "broadcast", "all-to-all", "barrier")
_WITHOUT_SIZE = ("barrier",)
_ITEM = 4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """An operation at one size.

    Attributes:
        nbytes: of the larger of a rank's two tensors, as MPI's and NCCL's own benchmarks count: what is
            reduced or broadcast, what is scattered, what all have gathered. Nought for a barrier.
    """

    operation: str
    nbytes: int

    @property
    def title(self) -> str:
        return f"{self.operation} of {show_size(self.nbytes)}" if self.nbytes else self.operation

    def elements(self, ranks: int) -> int:
        """How many floats that is, rounded up so that it can be cut for each rank."""
        return -(-self.nbytes // (_ITEM * ranks)) * ranks


def cases(operations: Sequence[str], sizes: Sequence[int]) -> list[Case]:
    """Every operation at every size, once each."""
    return [
        Case(operation=operation, nbytes=nbytes)
        for operation in dict.fromkeys(operations)
        for nbytes in ((0,) if operation in _WITHOUT_SIZE else dict.fromkeys(sizes))
    ]
