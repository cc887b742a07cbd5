"""One version of a model, in memory, to be read by many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ronde.server.serving.program import Program
from ronde.server.table.frozen import FrozenTable

__all__ = ["Snapshot", "Source"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """One version; whoever has a reference reads this one, whatever is served meanwhile.

    Attributes:
        version, step, time: as in `Manifest`.
        tables: by name.
        dense: parameters and buffers by name.
        program: how the model computes; None where it could not be exported.
        no_program: why so.
    """

    version: int
    step: int
    time: float
    tables: Mapping[str, FrozenTable]
    dense: Mapping[str, torch.Tensor]
    program: Program | None
    no_program: str = ""

    @property
    def dims(self) -> dict[str, int]:
        """Floats of a row, by table."""
        return {name: table.shape.dim for name, table in self.tables.items()}

    @property
    def inputs(self) -> dict[str, dict[str, Any]]:
        """Type and shape of each input of the program, by name, as JSON has them."""
        inputs = () if self.program is None else self.program.inputs
        return {each.name: {"dtype": each.dtype, "shape": each.shape} for each in inputs if each.dtype}


class Source(Protocol):
    """Where versions come from."""

    def versions(self) -> list[int]:
        """All that can be had, rising."""
        ...

    def load(self, version: int, near: Snapshot | None = None) -> Snapshot:
        """Make a version, from another one where that is shorter.

        Raises:
            DamagedFile: a file of it is missing, or is not what was written.
        """
        ...
