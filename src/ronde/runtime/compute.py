"""How the plan's compute axis is put into effect: the one place that decides it."""

from __future__ import annotations

from collections.abc import Callable

from ronde.boundary.patches import Patches
from ronde.boundary.sharded_call import Way, at_once
from ronde.parallel.micro_batches import MicroBatches
from ronde.parallel.recompute import Recompute
from ronde.plan import Plan

__all__ = ["install", "install_alone", "needs_boundary", "way"]


def way(plan: Plan) -> Way:
    """How a model's call on a rank's rows is carried out."""
    pieces = plan.compute.micro_batches
    return at_once if pieces == 1 else MicroBatches(pieces)


def needs_boundary(plan: Plan) -> bool:
    """Whether even a single rank has to know what in a model's arguments is the batch."""
    return plan.compute.micro_batches > 1


def install(
    plan: Plan, patches: Patches, *, inside: Callable[[], bool], note: Callable[[str], object]
) -> None:
    """What is done inside models, on this rank's rows; under the model edge, which is installed after it.

    Args:
        inside: whether execution is inside a model, where tensors are plain.
        note: takes a sentence for the user.
    """
    if plan.compute.recompute != "none":
        Recompute(plan.compute.recompute, inside, note).install(patches)


def install_alone(plan: Plan, note: Callable[[str], object]) -> None:
    """The same for a process that is alone and has no boundary; it stays as long as the process."""
    install(plan, Patches(), inside=lambda: True, note=note)
