"""The share of a model's matrix products, and of its parameters, that ranks divide under a mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from cut_shares.models import MODELS
from ronde.errors import RondeError
from ronde.testing.run_ranks import Rank

__all__ = ["MESHES", "Shares", "shares"]

MESHES = {"tensor=2": 2, "context=2": 2, "pipeline=2": 2, "tensor=2,context=2": 4}
"""By plan the number of ranks."""

_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::conv2d")


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """What ranks divide, as parts of one.

    Attributes:
        products: of the floating-point operations of matrix products in forward.
        parameters: of elements.
        why: the answer of the run that says what is not cut; "" without any.
    """

    products: float
    parameters: float
    why: str = ""


def shares(name: str, plan: str, run: Callable[..., list[Any]]) -> Shares:
    """Train a model for three steps on the ranks of a plan, and count in the last forward.

    With N ranks, all of what is divided is done once, and all of the rest N times.

    Args:
        run: calls a function of a `Rank` on as many ranks as the plan has.
    """
    model, loss = MODELS[name]()
    alone, _ = _counted(lambda: loss(model))
    elements = sum(each.numel() for each in model.parameters())
    told = run(_on_rank, name, plan)
    refused = next((said for _, _, said in told if said), "")
    if any(flops == 0 and refused for flops, _, _ in told):
        return Shares(0.0, 0.0, refused)
    others = len(told) - 1
    products = (len(told) - sum(flops for flops, _, _ in told) / alone) / others
    parameters = (len(told) - sum(held for _, held, _ in told) / elements) / others
    return Shares(products, parameters, refused)


def _counted(forward: Callable[[], torch.Tensor]) -> tuple[int, torch.Tensor]:
    with profile(activities=[ProfilerActivity.CPU], with_flops=True) as seen:
        made = forward()
    return sum(each.flops for each in seen.key_averages() if each.key in _PRODUCTS), made


def _on_rank(rank: Rank, name: str, plan: str) -> tuple[int, int, str]:
    """This rank's operations, the elements that it holds, and what was said."""
    flops = 0
    with rank.session(plan) as session:
        torch.manual_seed(0)
        model, loss = MODELS[name]()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        try:
            for _ in range(3):
                flops, made = _counted(lambda: loss(model))
                optimizer.zero_grad()
                made.backward()
                optimizer.step()
        except RondeError as error:
            return 0, 0, str(error)
        state = session.state.blocks
        blocks = [(each, None if state is None else state.block(each)) for each in model.parameters()]
        held = sum(each.numel() if block is None else block.leaf.numel() for each, block in blocks)
        return flops, held, "; ".join(session.strategies.notes())
