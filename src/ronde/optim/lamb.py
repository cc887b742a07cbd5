"""LAMB: Adam with steps of each layer in proportion to its norm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ronde.optim.trust import Layerwise, check, ratio

__all__ = ["LAMB"]


class LAMB(Layerwise):
    """Adam with layer-wise rates.

    For a parameter w with gradient g, at step t, with rate lr and weight decay b::

        m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
        u = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + b w;  w = w - lr (|w| / |u|) u

    with the quotient 1 where `|w|` or `|u|` is zero. Source: You et al., "Large batch optimization for deep
    learning", ICLR 2020. Norms are those of whole tensors: plans that shard optimizer state keep this state
    whole on every rank.

    Args:
        params: tensors, or groups. A group with `adapt=False` steps as AdamW does (biases, norms).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adapt: bool = True,
    ) -> None:
        check("lr", lr)
        for beta in betas:
            check("beta", beta, below=1.0)
        check("eps", eps)
        check("weight_decay", weight_decay)
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapt": adapt,
        })  # fmt: skip

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        step, (beta1, beta2) = float(state["step"]), group["betas"]
        moment = state["exp_avg"].lerp_(gradient, 1 - beta1)
        variance = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        update = moment / (1 - beta1**step) / ((variance / (1 - beta2**step)).sqrt_().add_(group["eps"]))
        if group["weight_decay"]:
            update.add_(parameter, alpha=group["weight_decay"])
        if group["adapt"]:
            update.mul_(ratio(parameter.norm(), update.norm()))
        parameter.sub_(update.mul_(group["lr"]))
