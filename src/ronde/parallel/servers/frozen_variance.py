"""Adam and AdamW with a frozen second moment (QAdam after its warm-up)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Adam, AdamW

from ronde.errors import UsageError
from ronde.patching.patches import Patches
from ronde.shards.hooked_step import replace_step

__all__ = ["frozen_step", "install"]


def install(patches: Patches, is_frozen: Callable[[Any], bool]) -> None:
    """Patch the steps of optimizers for which `is_frozen` returns True."""

    def around(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def step(optimizer: Any, closure: Any = None) -> Any:
            if type(optimizer) not in (Adam, AdamW) or not is_frozen(optimizer):
                return plain(optimizer, closure)
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            frozen_step(optimizer)
            return loss

        return step

    for kind in (Adam, AdamW):
        replace_step(patches, kind, around)


@torch.no_grad()
def frozen_step(optimizer: Any) -> None:
    """Step with a frozen, rescaled second moment.

        m = b1 m + (1 - b1) g;  w = w - lr m / (1 - b1^t) / (sqrt(v') + eps);  v' = v / (1 - b2^t), constant

    The constant is v', not v: with a constant v the correction would go on shrinking, and after a warm-up of
    50 steps the rate would grow to the 4.5-fold (as Bagua's does). So v grows as its correction shrinks, and
    a plain Adam can continue from this state.

    Weight decay is the class's own: added to g for Adam, subtracted from w before for AdamW.

    Raises:
        UsageError: `amsgrad` is set; a largest second moment has no meaning where it is constant.
    """
    for group in optimizer.param_groups:
        if group["amsgrad"]:
            raise UsageError(
                "compressed=momentum leaves the second moment as it is, of which amsgrad=True "
                "takes the largest; use amsgrad=False, or compressed=gradient [R294]"
            )
        decoupled = isinstance(optimizer, AdamW) or group.get("decoupled_weight_decay", False)
        for tensor in group["params"]:
            if tensor.grad is not None:
                _step(tensor, optimizer.state[tensor], group, decoupled)


def _step(tensor: torch.Tensor, state: dict[str, Any], group: dict[str, Any], decoupled: bool) -> None:
    lr, (beta1, beta2), decay = float(group["lr"]), group["betas"], group["weight_decay"]
    gradient: Any = -tensor.grad if group["maximize"] else tensor.grad  # pyright: ignore[reportOptionalOperand]
    if not state:  # it was added after the warm-up
        state["step"] = torch.zeros(())
        state["exp_avg"] = torch.zeros_like(tensor)
        # A single gradient says little about each element's scale, so the mean over all elements is used.
        state["exp_avg_sq"] = torch.full_like(tensor, float(gradient.square().mean()) * (1 - beta2))
    state["step"] += 1
    step = float(state["step"])
    if step > 1:
        state["exp_avg_sq"].mul_((1 - beta2**step) / (1 - beta2 ** (step - 1)))
    if decay and decoupled:
        tensor.mul_(1 - lr * decay)
    elif decay:
        gradient = gradient.add(tensor, alpha=decay)
    moment = state["exp_avg"].lerp_(gradient, 1 - beta1)
    scale = (state["exp_avg_sq"].sqrt() / math.sqrt(1 - beta2**step)).add_(group["eps"])
    tensor.addcdiv_(moment, scale, value=-lr / (1 - beta1**step))
