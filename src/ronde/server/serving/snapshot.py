"""One version of a model in memory, for many concurrent readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ronde.server.serving.program import Program
from ronde.server.table.frozen import FrozenTable

__all__ = ["Snapshot", "VersionSource"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """An immutable version of a model. Readers keep their reference while newer ones are served.

    Attributes:
        version, step, time: the same as in `Manifest`.
        tables: rows by the table's name.
        dense: parameters and buffers by name.
        program: the exported computation; None if the export failed.
        no_program: error of the export.
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
        """The dtype and shape of each program input, by name, for JSON."""
        inputs = () if self.program is None else self.program.inputs
        return {each.name: {"dtype": each.dtype, "shape": each.shape} for each in inputs if each.dtype}


class VersionSource(Protocol):
    """A source of versions: a run's folder or an exported model."""

    def versions(self) -> list[int]:
        """Return all available versions, rising."""
        ...

    def load(self, version: int, near: Snapshot | None = None) -> Snapshot:
        """Load a version, starting from `near` if that is shorter.

        Raises:
            DamagedFile: a file is missing, or its checksum differs.
        """
        ...
