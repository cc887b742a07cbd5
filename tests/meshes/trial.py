"""One cell on its ranks, compared with its reference."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from meshes import replicas, training
from meshes.axes import Cell
from ronde.cluster.mesh import MeshOfRanks
from ronde.plan import Plan

__all__ = ["models_of", "try_cell"]


def models_of(mesh: str) -> tuple[str, ...]:
    """The models that a mesh has something to do with."""
    return ("mixtral",) if "expert" in mesh else ("gpt", "llama")


def try_cell(cell: Cell, model: str, run: Callable[..., list[Any]], *, deferred: bool = False) -> None:
    """Train on the cell's ranks and by the reference.

    Args:
        run: calls a function of a `Rank` on as many ranks as the mesh has.
        deferred: on ranks the model is built inside `ronde.deferred()`.

    Raises:
        AssertionError: where they differ, or the run has something to say.
    """
    if Plan.parse(cell.plan).in_local_view:
        return _try_replicas(cell, model)
    on_ranks = training.on_ranks_in_parts if deferred else training.on_ranks
    training.compare(cell, model, run(on_ranks, cell.plan, cell.value, model))


def _try_replicas(cell: Cell, model: str) -> None:
    """By `ronde run`, where a loader gives each replica its rows."""
    mesh = MeshOfRanks.of(Plan.parse(cell.plan).for_ranks(cell.ranks).mesh)
    places = [mesh.coordinate(rank, "data") for rank in range(cell.ranks)]
    with tempfile.TemporaryDirectory() as place:
        told = replicas.run(cell.plan, cell.ranks, model, Path(place))
    schedules = [told[places.index(each)][1] for each in range(mesh.degree("data"))]
    wanted = replicas.reference(cell.plan, schedules, model)
    for place, (values, _) in zip(places, told, strict=True):
        for got, want in zip(values, wanted[place], strict=True):
            torch.testing.assert_close(got, want, rtol=training.TOLERANCE, atol=training.TOLERANCE)
