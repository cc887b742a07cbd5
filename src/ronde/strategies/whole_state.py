"""Reason why an optimizer's state stays whole under a plan that cuts it."""

from __future__ import annotations

from typing import Any

from ronde.plan import Plan
from ronde.plan.state import State
from ronde.shards.elementwise import ELEMENTWISE, is_elementwise
from ronde.shards.host_options import can_step_on_host

__all__ = ["why_state_is_whole"]


def why_state_is_whole(plan: Plan, optimizer: Any, state: State) -> str:
    """Return a sentence for the user, or "" where the state is cut or moved.

    Args:
        state: state axis of the plan, on these ranks.
    """
    elementwise, kind = is_elementwise(optimizer), type(optimizer)
    if elementwise and (not state.offloads_optimizer or can_step_on_host(optimizer)):
        return ""
    known = ", ".join(each.__name__ for each in ELEMENTWISE)
    # A library's own class of one of these names is another one.
    foreign = kind not in ELEMENTWISE and kind.__name__ in known.split(", ")
    name = f"{kind.__module__ + '.' if foreign else ''}{kind.__name__}"
    is_differentiable = kind in ELEMENTWISE and not elementwise
    offload, placement = plan.item("offload"), plan.item("state")
    if not state.offloads_optimizer:
        if is_differentiable:
            return (
                f"the optimizer state of {name} is whole on every rank: a step with differentiable=True "
                f"needs whole tensors in its graph; leave differentiable out to use {placement} [R309]"
            )
        return (
            f"the optimizer state of {name} is whole on every rank: {placement} cuts that of {known}, which "
            f"update each element by itself [R309]"
        )
    if is_differentiable:
        return (
            f"the optimizer state of {name} is whole, and stays on the device: a step with "
            "differentiable=True needs whole tensors in its graph; leave differentiable out to use "
            f"{offload} [R309]"
        )
    if not elementwise:
        return (
            f"the optimizer state of {name} is whole, and stays on the device: {offload} moves that of "
            f"{known}, which update each element by itself [R309]"
        )
    return (
        f"the optimizer state of {name} is whole, and stays on the device: a step with capturable=True runs "
        f"on devices only; leave capturable out to use {offload} [R309]"
    )
