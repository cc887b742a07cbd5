"""Arithmetic of state and activations: bytes on a rank under a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ronde.plan import Compute
from ronde.plan.state import Placement
from ronde.trace.resident import Kind

__all__ = ["FORMULAS", "OWNER", "Activations", "Sizes", "expected", "expected_activations"]

OWNER = 0
"""The owner of all state under `central`."""

FORMULAS: Mapping[str, str] = {
    "replicated": "all of it",
    "zero1": "parameters, gradients, optimizer / N",
    "zero2": "parameters, (gradients + optimizer) / N",
    "zero3": "all of it / N, and the largest unit twice",
    "central": "all of it on the owner; on every rank the largest unit twice",
}
"""Placements with a formula, in words."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Sizes of a model and its optimizer.

    Attributes:
        parameters: the number of parameters.
        largest_unit: the number in the largest unit that is gathered at once where parameters are cut.
        slots: numbers of the optimizer for each parameter: two for Adam.
        itemsize: bytes of a number.
    """

    parameters: int
    largest_unit: int
    slots: int
    itemsize: int = 4


def expected(placement: Placement, sizes: Sizes, *, ranks: int, rank: int) -> dict[Kind, int]:
    """Return the bytes of parameters, gradients and optimizer state on one rank.

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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Activations:
    """Bytes that plain torch keeps for backward, of a rank's rows of one batch.

    Parameters and the batch itself are left out.

    Attributes:
        rows: rows of the batch on a rank.
        gradients: bytes of the gradients of all parameters, which are there while pieces are summed.
        model: bytes of the whole model.
        loss: bytes of the loss in addition.
        narrow: bytes of both, where the model computes in bfloat16 under autocast.
        left: bytes outside of repeated blocks, and of the blocks' arguments.
        results: bytes of matrix products, convolutions and attention inside blocks, in addition.
        largest: bytes of the block with most, in addition to `left`.
        rest: bytes of the block with most, in addition to `left` and `results`.
    """

    rows: int
    gradients: int
    model: int
    loss: int
    narrow: int
    left: int
    results: int
    largest: int
    rest: int


def expected_activations(compute: Compute, activations: Activations) -> int | None:
    """Return the bytes at the peak; None for combined values without a formula.

    >>> sizes = dict(model=1600, loss=8, narrow=900, left=408, results=700, largest=300, rest=120)
    >>> kept = Activations(rows=8, gradients=50, **sizes)
    >>> values = {}, {"micro_batches": 4}, {"recompute": "full"}, {"recompute": "selective"}
    >>> [expected_activations(Compute(**each), kept) for each in (*values, {"precision": "bf16"})]
    [1608, 458, 708, 1228, 900]
    """
    changed = [
        compute.micro_batches > 1, compute.recompute != "none", compute.precision != "fp32", compute.compile
    ]  # fmt: skip
    if sum(changed) > 1 or compute.compile or compute.precision not in ("fp32", "bf16"):
        return None
    if compute.precision == "bf16":
        return activations.narrow
    if compute.recompute == "full":
        return activations.left + activations.largest
    if compute.recompute == "selective":
        return activations.left + activations.results + activations.rest
    pieces = min(compute.micro_batches, activations.rows)
    summed = activations.gradients if pieces > 1 else 0
    return -(-activations.model // pieces) + activations.loss + summed
