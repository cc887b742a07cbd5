"""How many bytes of activations a rank has to hold under the plan's compute values: arithmetic."""

from __future__ import annotations

import dataclasses

from ronde.plan import Compute

__all__ = ["Activations", "expected_activations"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Activations:
    """What a formula is made of: bytes that plain torch keeps for backward, of a rank's rows of one batch.

    Parameters and the batch itself are there anyhow, and are left out.

    Attributes:
        rows: of the batch on a rank.
        gradients: of all parameters: what backward sums over pieces is done with the first piece only.
        model: kept by the whole model.
        loss: kept by the loss beside that.
        narrow: kept by both when the model computes in bfloat16 under autocast.
        left: kept outside of repeated blocks, and the blocks' arguments.
        results: of matrix products, convolutions and attention inside blocks, beside these.
        largest: kept by the block that keeps most, beside `left`.
        rest: likewise, beside `left` and `results`.
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
    """Bytes at the peak; None where values meet for which there is no formula.

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
