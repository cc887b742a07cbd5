"""The reason why the state of an optimizer stays whole under a plan that cuts or moves state."""

from __future__ import annotations

from typing import Any

from ronde.plan import Plan
from ronde.plan.state import State
from ronde.shards.elementwise import ELEMENTWISE, is_elementwise
from ronde.shards.host_options import can_step_on_host

__all__ = ["why_state_is_whole"]


def why_state_is_whole(plan: Plan, optimizer: Any, state: State) -> str:
    """A sentence for the user, "" where the state is cut or moved.

    Args:
        state: the plan's, on these ranks.
    """
    elementwise, kind = is_elementwise(optimizer), type(optimizer)
    if elementwise and (not state.offloads_optimizer or can_step_on_host(optimizer)):
        return ""
    known = ", ".join(each.__name__ for each in ELEMENTWISE)
    # A library's own of one of these names is another one.
    foreign = kind not in ELEMENTWISE and kind.__name__ in known.split(", ")
    whole = f"the optimizer state of {kind.__module__ + '.' if foreign else ''}{kind.__name__} is whole"
    graph = "a step with differentiable=True has a graph of whole tensors; leave that out to have"
    each_by_itself = f"that of {known}, which update each element by itself"
    is_differentiable = kind in ELEMENTWISE and not elementwise
    if not state.offloads_optimizer:
        placement = plan.item("state")
        if is_differentiable:
            return f"{whole} on every rank: {graph} {placement}"
        return f"{whole} on every rank: {placement} cuts {each_by_itself}"
    offload = plan.item("offload")
    if is_differentiable:
        return f"{whole}, and stays on the device: {graph} {offload}"
    if not elementwise:
        return f"{whole}, and stays on the device: {offload} moves {each_by_itself}"
    return (
        f"{whole}, and stays on the device: a step with capturable=True is for devices only; leave that out "
        f"to have {offload}"
    )
