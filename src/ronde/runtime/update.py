"""Whose steps are cut over ranks: the one place that decides it, from the plan and the optimizer."""

from __future__ import annotations

from typing import Any

import torch

from ronde.boundary.context import Context
from ronde.parallel.elementwise import ELEMENTWISE, is_elementwise
from ronde.parallel.sharded_update import ShardedUpdate
from ronde.plan import Plan

__all__ = ["note_whole_state", "sharded_update"]


def sharded_update(plan: Plan, context: Context) -> ShardedUpdate | None:
    """What cuts the optimizers' steps under this plan; None where every rank updates everything."""
    return ShardedUpdate(context, _has_state) if plan.state.placement == "zero1" else None


def note_whole_state(plan: Plan, context: Context, optimizer: Any) -> None:
    """Say that an optimizer's state is not cut, though the plan asks for it."""
    if plan.state.placement == "zero1" and not is_elementwise(optimizer):
        known = ", ".join(kind.__name__ for kind in ELEMENTWISE)
        context.note(
            f"the optimizer state of {type(optimizer).__name__} is whole on every rank: "
            f"{plan.item('state')} cuts that of {known}, which update each element by itself"
        )


def _has_state(optimizer: Any) -> bool:
    """Without any, to share the parameters would cost more than to update all of them."""
    if type(optimizer) is not torch.optim.SGD:
        return True
    return any(group["momentum"] != 0 for group in optimizer.param_groups)
