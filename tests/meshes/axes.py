"""The rows and columns of the table: meshes, and values of the other axes.

A mesh, or a value, is one line here; the table of docs/reference/plan.md, the pure tests and the soak follow.
"""

from __future__ import annotations

import dataclasses
import enum

from ronde.plan import expand, validate

__all__ = ["MESHES", "VALUES", "Cell", "Standing", "cells"]

MESHES = {
    "tensor=2": 2,
    "pipeline=2": 2,
    "tensor=2,pipeline=2": 4,
    "context=2": 2,
    "expert=2": 2,
    "data=2,tensor=2": 4,
    "data=2,pipeline=2": 4,
    "data=2,tensor=2,pipeline=2": 8,
    "data=2,context=2": 4,
    "tensor=2,context=2": 4,
    "pipeline=2,context=2": 4,
    "tensor=2,pipeline=2,context=2": 8,
    "data=2,tensor=2,context=2": 8,
    "data=4,expert=2": 4,
    "data=2,tensor=2,expert=2": 4,
    "context=2,expert=2": 2,
    "data=2,context=2,expert=4": 4,
    "data=2,pipeline=2,expert=2": 4,
    "data=4,pipeline=2,expert=2": 8,
    "data=2,tensor=2,pipeline=2,expert=2": 8,
    "data=2,pipeline=2,context=2,expert=2": 8,
}
"""By mesh the number of ranks; `expert` cuts `data` and `context`, and adds none."""

VALUES = (
    "zero1",
    "zero2",
    "zero3",
    "central",
    "zero1,offload=optimizer",
    "zero3,offload=all",
    "precision=bf16",
    "precision=fp16",
    "recompute=selective",
    "recompute=full",
    "micro-batches=2",
    "micro-batches=2,schedule=1f1b",
    "micro-batches=4,schedule=interleaved",
    "micro-batches=4,schedule=zero-bubble",
    "context-attention=ring",
    "sequence-parallel=on",
    "compile=true",
    "sparse=sharded",
    "fp16-allreduce",
    "compressor=bf16,error-feedback=true",
    "bytegrad",
    "onebit",
    "twobit",
    "dgc,density=0.1",
    "compressor=randomk,density=0.5",
    "powersgd",
    "update=local,every=4",
    "decentralized",
    "async-average",
    "state=server",
)


class Standing(enum.Enum):
    """How a cell is answered by the plan."""

    LEGAL = "yes"
    CONTRADICTION = "no meaning"
    NOT_BUILT = "not yet"


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One mesh with one value; "" is the mesh alone."""

    mesh: str
    value: str

    @property
    def plan(self) -> str:
        return f"{self.mesh},{self.value}" if self.value else self.mesh

    @property
    def ranks(self) -> int:
        return MESHES[self.mesh]

    @property
    def sentences(self) -> list[str]:
        """The refusals of the plan on these ranks; none where it is legal."""
        return validate(expand(self.plan), self.ranks)

    @property
    def standing(self) -> Standing:
        said = self.sentences
        if not said:
            return Standing.LEGAL
        not_built = any("not available in this version" in sentence for sentence in said)
        return Standing.NOT_BUILT if not_built else Standing.CONTRADICTION


def cells() -> list[Cell]:
    """All of the table, mesh by mesh."""
    return [Cell(mesh, value) for mesh in MESHES for value in VALUES]
