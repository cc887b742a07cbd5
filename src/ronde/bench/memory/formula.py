"""How many bytes of state a rank has to hold under each plan: arithmetic, no measurement."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ronde.plan.state import Placement
from ronde.trace.resident import Kind

__all__ = ["FORMULAS", "OWNER", "Sizes", "expected"]

OWNER = 0
"""The rank that holds everything under `central`."""

FORMULAS: Mapping[str, str] = {
    "replicated": "all of it",
    "zero1": "parameters, gradients, optimizer / N",
    "zero2": "parameters, (gradients + optimizer) / N",
    "zero3": "all of it / N, and the largest unit twice",
    "central": "all of it on the owner; on every rank the largest unit twice",
}
"""Placements of which there is a formula, in words."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What a formula is made of.

    Attributes:
        parameters: how many a model has.
        largest_unit: how many the largest part has that ronde gathers at once where parameters are cut.
        slots: how many numbers the optimizer keeps for each: two for Adam.
        itemsize: bytes of a number.
    """

    parameters: int
    largest_unit: int
    slots: int
    itemsize: int = 4


def expected(placement: Placement, sizes: Sizes, *, ranks: int, rank: int) -> dict[Kind, int]:
    """Bytes of parameters, gradients and optimizer state that one rank holds.

    >>> adam = Sizes(parameters=1000, largest_unit=100, slots=2)
    >>> [sum(expected(name, adam, ranks=2, rank=0).values()) for name in ("replicated", "zero1", "zero3")]
    [16000, 12000, 8800]
    """
    whole = sizes.parameters * sizes.itemsize
    part = -(-whole // ranks)
    parameters, gradients, optimizer = whole, whole, whole * sizes.slots
    match placement:
        case "replicated":
            pass
        case "zero1":
            optimizer = part * sizes.slots
        case "zero2":
            gradients, optimizer = part, part * sizes.slots
        case "zero3":
            parameters = part + 2 * sizes.largest_unit * sizes.itemsize
            gradients, optimizer = part, part * sizes.slots
        case "central":
            owned = 1 if rank == OWNER else 0
            parameters = parameters * owned + 2 * sizes.largest_unit * sizes.itemsize
            gradients, optimizer = gradients * owned, optimizer * owned
        case "server":
            raise ValueError("servers hold the state, not ranks")
    return {"parameters": parameters, "gradients": gradients, "optimizer": optimizer}
