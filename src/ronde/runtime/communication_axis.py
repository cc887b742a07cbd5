"""Installation of the plan's communication axis: encoding of gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ronde.comm.process_group import Comm
from ronde.parallel.servers import frozen_variance
from ronde.patching.patches import Patches
from ronde.plan import Plan
from ronde.sync.compression.protocol import GradientCompression

__all__ = ["account", "install", "of_plan"]


def of_plan(
    plan: Plan, comm: Comm, parameters: Callable[[], Mapping[int, int]]
) -> GradientCompression | None:
    """Create the compression of gradients; None if they are sent uncompressed.

    Args:
        parameters: see `GradientCompression`.
    """
    if plan.communication.as_it_is or comm.world_size == 1:
        return None
    return GradientCompression(comm, plan.communication, plan.update.warm_up, parameters)


def install(patches: Patches, compression: GradientCompression) -> None:
    """Install hooks for steps, and for Adam's second moment."""

    def before(optimizer: Any, *_: Any) -> None:
        compression.before_step(optimizer)

    def after(optimizer: Any, *_: Any) -> None:
        compression.after_step(optimizer)

    patches.undo(register_optimizer_step_pre_hook(before).remove)
    patches.undo(register_optimizer_step_post_hook(after).remove)
    if compression.freezes:
        frozen_variance.install(patches, lambda optimizer: not compression.is_warming(optimizer))


def account(plan: Plan, compression: GradientCompression | None) -> str:
    """Describe the encoding of gradients for a summary."""
    if compression is None:
        return ""
    names = ("compressor", "compressed", "error-feedback", "reduction", "predivide")
    asked = {name: plan.item(name) for name in names}
    plain = ("compressor=none", "compressed=gradient", "error-feedback=false", "reduction=mean")
    items = [item for item in asked.values() if item not in plain and not item.endswith("not set")]
    told = compression.account()
    return ",".join(items) + (f"; {told}" if told else "")
