"""Whose steps are cut over ranks: the one place that decides it, from the plan and the optimizer."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ronde.boundary.context import Context
from ronde.comm.backend import SharedMemoryBackend
from ronde.parallel.elementwise import ELEMENTWISE, is_elementwise
from ronde.parallel.sharded_update import ShardedUpdate
from ronde.plan import Plan

__all__ = ["note_whole_state", "sharded_update"]


# What the rule below was read off: processor time of a step on 2 ranks over that of the whole update.
# AdamW, of 1 M, 4 M, 8 M elements: 0.83 to 0.91, 0.87 to 0.94, 0.70 to 0.76; of 256 k: 0.88 to 1.06. SGD
# with momentum: 1.2 to 1.6. Fused AdamW: 1.3 and more.
_WORTH_SHARING = 1 << 20
# Steps; whoever reads the state more often has it whole meanwhile.
_READ_SELDOM = 20


def sharded_update(plan: Plan, context: Context) -> ShardedUpdate | None:
    """What cuts the optimizers' steps under this plan; None where every rank updates everything."""
    if plan.state.placement == "zero1":
        return ShardedUpdate(context, _has_state)
    if plan.state.placement == "replicated" and isinstance(context.comm.backend, SharedMemoryBackend):
        return ShardedUpdate(context, _Faster(context))
    return None


def note_whole_state(plan: Plan, context: Context, optimizer: Any) -> None:
    """Say that an optimizer's state is not cut, though the plan asks for it."""
    if plan.state.placement == "zero1" and not is_elementwise(optimizer):
        known = ", ".join(kind.__name__ for kind in ELEMENTWISE)
        context.note(
            f"the optimizer state of {type(optimizer).__name__} is whole on every rank: "
            f"{plan.item('state')} cuts that of {known}, which update each element by itself"
        )


class _Faster:
    """Whether ranks that share memory are done sooner when each updates a part of the parameters."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cut_at: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def __call__(self, optimizer: Any) -> bool:
        groups = optimizer.param_groups
        # One pass over the memory: to share its result takes as long.
        if type(optimizer) is torch.optim.SGD or any(group.get("fused") for group in groups):
            return False
        elements = sum(
            tensor.numel() for group in groups for tensor in group["params"] if tensor.grad is not None
        )
        steps, before = self._context.tally.steps, self._cut_at.get(optimizer)
        if elements < _WORTH_SHARING or (before is not None and steps - before < _READ_SELDOM):
            return False
        self._cut_at[optimizer] = steps
        return True


def _has_state(optimizer: Any) -> bool:
    """Without any, to share the parameters would cost more than to update all of them."""
    if type(optimizer) is not torch.optim.SGD:
        return True
    return any(group["momentum"] != 0 for group in optimizer.param_groups)
