"""Installation of the plan's compute axis: precision, compilation, recomputation, pieces of batches."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection
from typing import Any

import torch

from ronde.parallel.compute.compile import Compile, require_compiler
from ronde.parallel.compute.loss_scaling import LossScaling
from ronde.parallel.compute.precision import NARROW, Precision, allow_tf32
from ronde.parallel.compute.recompute import Inside, Recompute
from ronde.patching.patches import Patches
from ronde.plan import Plan
from ronde.sync.gradient_shards import GradientShards

__all__ = [
    "cuts_batches",
    "install_alone",
    "install_around",
    "loss_scaling",
    "needs_boundary",
    "recompute",
]

Note = Callable[[str], object]


def cuts_batches(plan: Plan, ranks: int) -> bool:
    """Return whether batches are computed in pieces, at once or one after another."""
    return ranks > 1 or plan.compute.micro_batches > 1


def needs_boundary(plan: Plan) -> bool:
    """Return whether even a single rank needs to observe model calls and batches."""
    return cuts_batches(plan, 1) or plan.state.on(1).offloads_optimizer


def recompute(plan: Plan, inside: Inside) -> Recompute | None:
    """Make the recomputation of model blocks in backward; None if nothing is recomputed."""
    return None if plan.compute.recompute == "none" else Recompute(plan.compute.recompute, inside)


def install_around(plan: Plan, patches: Patches, *, in_script: Callable[[], bool] | None, note: Note) -> None:
    """Install precision and compilation around models, above the model edge.

    Args:
        in_script: whether execution is in the script; None: any module without a caller is a model.
    """
    if plan.compute.compile:
        require_compiler(os.environ)
        Compile(in_script, _compiler(plan)).install(patches)
    if plan.compute.precision in NARROW:
        Precision(plan.compute.precision, note).install(patches)
    elif plan.compute.precision == "tf32":
        allow_tf32(patches, note)


def _compiler(plan: Plan) -> Callable[..., Any]:
    """Return the compiler, set to draw random numbers as torch's kernels do.

    By default compiled code would draw others.
    """
    if plan.data.rng == "per-rank":
        return torch.compile
    return functools.partial(torch.compile, options={"fallback_random": True})


def loss_scaling(
    plan: Plan,
    agreed: Callable[[bool], bool],
    parts: GradientShards | None = None,
    scaled_as_parts: Callable[[], Collection[int]] = tuple,
) -> LossScaling | None:
    """Create the scaling of losses; None for a plan without it.

    Args:
        agreed, parts, scaled_as_parts: see `LossScaling`.
    """
    return LossScaling(agreed, parts, scaled_as_parts) if plan.compute.precision == "fp16" else None


def install_alone(plan: Plan, patches: Patches, note: Note) -> None:
    """Install the compute axis in a single process, where no model call is cut."""
    again = recompute(plan, Inside(lambda: True, lambda: False, note))
    if again is not None:
        again.install(patches)
    install_around(plan, patches, in_script=None, note=note)
    scaling = loss_scaling(plan, lambda answer: answer)
    if scaling is not None:
        scaling.install(patches)
        scaling.install_backward(patches)
