"""LARS: momentum SGD with steps of each layer in proportion to its norm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ronde.optim.trust import Layerwise, check, ratio

__all__ = ["LARS"]


class LARS(Layerwise):
    """Momentum SGD with layer-wise rates.

    For a parameter w with gradient g, rate lr, momentum m, weight decay b, trust coefficient c::

        l = c |w| / (|g| + b |w|);  v = m v + lr l (g + b w);  w = w - v

    with l = 1 where `|w|` or `|g|` is zero. Source: You, Gitman and Ginsburg, "Large batch training of
    convolutional networks", 2017. Norms are those of whole tensors: plans that shard optimizer state keep
    this state whole on every rank.

    Args:
        params: tensors, or groups. A group with `trust_coefficient=None` steps as SGD does (biases, norms).
        lr: the rate of the whole model; the layers' own rates are about a thousandth of it.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float | None = 0.001,
    ) -> None:
        check("lr", lr)
        check("momentum", momentum, below=1.0)
        check("weight_decay", weight_decay)
        check("trust_coefficient", trust_coefficient or 0.0)
        super().__init__(params, {
            "lr": lr, "momentum": momentum, "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
        })  # fmt: skip

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        decay, coefficient = group["weight_decay"], group["trust_coefficient"]
        change = gradient.add(parameter, alpha=decay) if decay else gradient.clone()
        if coefficient is not None:
            norm, of_gradient = parameter.norm(), gradient.norm()
            there = of_gradient > 0
            below = torch.where(there, of_gradient + decay * norm, torch.zeros_like(norm))
            own = torch.where(there & (norm > 0), coefficient * ratio(norm, below), torch.ones_like(norm))
            change.mul_(own)
        change.mul_(group["lr"])
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        parameter.sub_(state["momentum_buffer"].mul_(group["momentum"]).add_(change))
