"""One cell on its ranks, compared with its reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshes import training
from meshes.axes import Cell

__all__ = ["models_of", "try_cell"]


def models_of(mesh: str) -> tuple[str, ...]:
    """The models that a mesh has something to do with."""
    return ("mixtral",) if "expert" in mesh else ("gpt", "llama")


def try_cell(cell: Cell, model: str, run: Callable[..., list[Any]]) -> None:
    """Train on the cell's ranks and by the reference.

    Args:
        run: calls a function of a `Rank` on as many ranks as the mesh has.

    Raises:
        AssertionError: where they differ, or the run has something to say.
    """
    training.compare(cell, model, run(training.on_ranks, cell.plan, cell.value, model))
