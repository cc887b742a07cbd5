"""Twins of the plain run: plain python, different from it by rounding alone, to show what rounding does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ronde.verify.clauses import update, values
from ronde.verify.clauses.noise import Noise
from ronde.verify.record import Turned, Twin
from ronde.verify.runs import Run

__all__ = ["TWINS", "Rounding", "noise_of", "rounding_of"]

TWINS: tuple[Twin, ...] = ("halves", "thirds", "up", "down", "threads")
"""Those whose largest difference is the noise floor."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rounding:
    """Where ranks part from plain python by rounding: at a tie or a kink.

    Attributes:
        step: the first optimizer step after which they lie further apart than the noise floor allows.
        turned: of what lay within rounding of a tie or a kink until then, the closest.
    """

    step: int
    turned: Turned


def noise_of(plain: Run, twins: Iterable[Run]) -> Noise:
    """How far the twins lie from the plain run."""
    reference = plain.records[0]
    return Noise.largest(
        Noise(
            vector=update.vector_differences(twin.records[0], reference),
            shares=update.share_differences(twin.records[0], reference),
            gradients=values.norm_differences(twin.records[0], reference),
            tensors=update.tensor_differences(twin.records[0], reference),
            values=values.value_differences(twin.records[0], reference),
        )
        for twin in twins
    )


def rounding_of(plain: Run, run: Run, turned: Run, noise: Noise) -> Rounding | None:
    """Where the run parts from plain python, if something lay at a tie or a kink there; else None.

    Args:
        turned: the twin whose numbers at ties and kinks were turned.
        noise: what the other twins show.
    """
    reference = plain.records[0]
    apart = Noise.largest(
        Noise(
            vector=update.vector_differences(rank, reference),
            gradients=values.norm_differences(rank, reference),
        )
        for rank in run.records
    )
    steps = range(1, len(reference.steps) + 1)
    begun = next(
        (
            step
            for step in steps
            if apart.vector_at(step) > 3 * noise.vector_at(step)
            or apart.gradients_at(step) > 3 * noise.gradients_at(step)
        ),
        len(reference.steps),
    )
    until = [each for each in turned.records[0].turned if each.step <= begun]
    at = [each for each in until if each.step == begun] or until
    return Rounding(step=begun, turned=min(at, key=lambda each: each.apart)) if at else None
