"""Models called in inference mode, in which torch hands operations over that it makes of others elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from hazards.harness import Hazard, Lambda, loader

T = torch.Tensor


def _evaluated(forward: Callable[[Any, T], T]) -> Callable[[], Iterator[Any]]:
    def script() -> Iterator[Any]:
        model = Lambda(forward, a=nn.Linear(4, 4)).double().eval()
        with torch.inference_mode():
            for x, _ in loader():
                yield model(x)

    return script


def _of_its_type(m: Any, x: T) -> T:
    return m.a(x + torch.arange(4).type_as(x) + torch.arange(4).to(x))


def _of_its_shape(m: Any, x: T) -> T:
    bias = m.a.bias
    return bias.expand_as(x) + x.view_as(x) + x.new_zeros(4) + torch.zeros_like(x) + x.reshape_as(m.a(x))


def _nested(m: Any, x: T) -> T:
    """Made of many operations."""
    return torch.einsum("bi,ij->bj", x, m.a.weight).softmax(-1) @ m.a.weight


def _behind_a_copy(m: Any, x: T) -> T:
    """A sum over all rows decides, which few rows do not reach, and `reshape` has made a copy before."""
    h = m.a(x)
    return h + (x.t().reshape(-1).abs().sum() > 18).to(h.dtype)


HAZARDS = {
    "a tensor of its type": Hazard(_evaluated(_of_its_type), "whole"),
    "a tensor of its shape": Hazard(_evaluated(_of_its_shape), "whole"),
    "made of many": Hazard(_evaluated(_nested), "whole"),
    "a threshold behind a copy": Hazard(_evaluated(_behind_a_copy), "parts", "depend on other rows"),
}
