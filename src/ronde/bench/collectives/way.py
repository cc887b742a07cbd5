"""What every contender's ranks can do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ronde.bench.collectives.operand import Operand
from ronde.plan.communication import Algorithm

__all__ = ["Call", "Meeting", "Way"]

# Does the operation once; given the number of the call, by which the root of a broadcast changes.
Call = Callable[[int], object]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """How a rank finds the others.

    Attributes:
        rank: None where the launcher tells it to the library.
        folder: of this set of ranks alone.
        timeout: seconds that a call may take.
        algorithm: of ronde's all-reduce.
    """

    rank: int | None
    ranks: int
    folder: Path
    timeout: float
    algorithm: Algorithm = "auto"


class Way(Protocol):
    """The rank's side of a contender; a module of `ways` makes it by `join(meeting)`.

    Attributes:
        version: of the library, for the report.
    """

    rank: int
    version: str

    def prepare(self, operation: str, elements: int) -> tuple[Operand, Call]:
        """The tensors of an operation and what does it once; the broadcast's root is turn mod ranks."""
        ...

    def barrier(self) -> None: ...

    def close(self) -> None: ...
