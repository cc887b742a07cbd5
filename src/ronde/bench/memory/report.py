"""What was measured of memory, and how it is kept as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from ronde.bench.json_report import written
from ronde.bench.machine import Machine
from ronde.bench.memory.activations import Activations, expected_activations
from ronde.bench.memory.formula import Sizes, expected
from ronde.plan import expand
from ronde.trace.memory import Memory

__all__ = ["KIND", "MemoryReport", "PlanMemory"]

KIND = "memory"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlanMemory:
    """One run of the workload under one plan.

    Attributes:
        command: as it was run.
        ranks: the peaks of each rank.
        loss: of the last batch, by which runs prove that they trained alike.
    """

    plan: str
    command: str
    ranks: tuple[Memory, ...]
    loss: float

    def formula(self, sizes: Sizes, rank: int) -> int:
        """Bytes of state that the rank has to hold."""
        placement = expand(self.plan).state.placement
        return sum(expected(placement, sizes, ranks=len(self.ranks), rank=rank).values())

    def ratio(self, sizes: Sizes, rank: int) -> float:
        """The state that the rank held over that of the formula."""
        return self.ranks[rank].state / self.formula(sizes, rank)

    def shown(self, sizes: Sizes) -> int:
        """The rank whose ratio is the largest; the first among equals."""
        return max(range(len(self.ranks)), key=lambda rank: (self.ratio(sizes, rank), -rank))

    def activations_formula(self, activations: Activations | None) -> int | None:
        """Bytes of activations that a rank has to hold; None where nobody knows."""
        return None if activations is None else expected_activations(expand(self.plan).compute, activations)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemoryReport:
    """One invocation of `ronde bench memory`.

    Attributes:
        sizes: of the workload's model and optimizer.
        activations: what plain torch keeps for backward; where a plan has compute values only.
    """

    machine: Machine
    workload: str
    sizes: Sizes
    results: tuple[PlanMemory, ...]
    activations: Activations | None = None

    @property
    def ranks(self) -> int:
        return len(self.results[0].ranks)

    def to_json(self) -> str:
        """Every rank's peaks, and what the formula says."""
        return written(KIND, self, self._figures)

    def _figures(self, result: PlanMemory) -> dict[str, Any]:
        ranks = range(len(result.ranks))
        figures: dict[str, Any] = {
            "formula": [result.formula(self.sizes, rank) for rank in ranks],
            "ratio": [result.ratio(self.sizes, rank) for rank in ranks],
        }
        if self.activations is not None:
            figures["activations"] = result.activations_formula(self.activations)
        return figures
