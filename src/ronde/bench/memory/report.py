"""What was measured of memory, and how it is kept as JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from ronde.bench.machine import Machine
from ronde.bench.memory.activations import Activations, expected_activations
from ronde.bench.memory.formula import Sizes, expected
from ronde.bench.reading import reading
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
        fields = {"kind": KIND, **dataclasses.asdict(self)}
        for result, described in zip(self.results, fields["results"], strict=True):
            ranks = range(len(result.ranks))
            described["figures"] = {
                "formula": [result.formula(self.sizes, rank) for rank in ranks],
                "ratio": [result.ratio(self.sizes, rank) for rank in ranks],
            }
            if self.activations is not None:
                described["figures"]["activations"] = result.activations_formula(self.activations)
        return json.dumps(fields, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> MemoryReport:
        """The report that `to_json` wrote; its figures are made anew.

        Raises:
            UsageError: for anything else, and for what an earlier version wrote.
        """
        with reading(text, KIND):
            fields = json.loads(text)
            return cls(
                machine=Machine(**fields["machine"]),
                workload=fields["workload"],
                sizes=Sizes(**fields["sizes"]),
                results=tuple(_result(each) for each in fields["results"]),
                activations=(kept := fields.get("activations")) and Activations(**kept),
            )


def _result(fields: dict[str, Any]) -> PlanMemory:
    ranks = tuple(Memory.from_fields(each) for each in fields["ranks"])
    return PlanMemory(plan=fields["plan"], command=fields["command"], ranks=ranks, loss=fields["loss"])
