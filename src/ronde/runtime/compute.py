"""How the plan's compute axis is put into effect: the one place that decides it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection
from typing import Any

import torch

from ronde.parallel.compiling import Compile, require_compiler
from ronde.parallel.loss_scaling import LossScaling
from ronde.parallel.precision import NARROW, Precision, allow_tf32
from ronde.parallel.recompute import Inside, Recompute
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
    """Whether a batch is computed in pieces, side by side or one after the other."""
    return ranks > 1 or plan.compute.micro_batches > 1


def needs_boundary(plan: Plan) -> bool:
    """Whether even a single rank has to know when models are called, and on which batch."""
    return cuts_batches(plan, 1) or plan.state.on(1).offloads_optimizer


def recompute(plan: Plan, inside: Inside) -> Recompute | None:
    """What computes blocks of models again in backward; None where the plan keeps all activations."""
    return None if plan.compute.recompute == "none" else Recompute(plan.compute.recompute, inside)


def install_around(plan: Plan, patches: Patches, *, in_script: Callable[[], bool] | None, note: Note) -> None:
    """What is done around models; over the model edge, which is installed before it.

    Args:
        in_script: whether execution is in the script; None: what is called by no other module is a model.
    """
    if plan.compute.compile:
        require_compiler(os.environ)
        Compile(in_script, _compiler(plan)).install(patches)
    if plan.compute.precision in NARROW:
        Precision(plan.compute.precision, note).install(patches)
    elif plan.compute.precision == "tf32":
        allow_tf32(patches, note)


def _compiler(plan: Plan) -> Callable[..., Any]:
    """Compiled code draws by itself what torch's kernels would draw otherwise, unless it is told not to."""
    if plan.data.rng == "per-rank":
        return torch.compile
    return functools.partial(torch.compile, options={"fallback_random": True})


def loss_scaling(
    plan: Plan,
    agreed: Callable[[bool], bool],
    parts: GradientShards | None = None,
    scaled_as_parts: Callable[[], Collection[int]] = tuple,
) -> LossScaling | None:
    """The scale of losses; None for a plan without one.

    Args:
        agreed, parts, scaled_as_parts: as of `LossScaling`.
    """
    return LossScaling(agreed, parts, scaled_as_parts) if plan.compute.precision == "fp16" else None


def install_alone(plan: Plan, patches: Patches, note: Note) -> None:
    """Put all of it into effect in a process that computes alone, without a boundary."""
    again = recompute(plan, Inside(lambda: True, lambda: False, note))
    if again is not None:
        again.install(patches)
    install_around(plan, patches, in_script=None, note=note)
    scaling = loss_scaling(plan, lambda answer: answer)
    if scaling is not None:
        scaling.install(patches)
        scaling.install_backward(patches)
