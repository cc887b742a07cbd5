"""Reductions of several ranks' tensors into one, element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["REDUCTIONS", "Reduction", "reduce_into"]

Reduction = Callable[..., Any]

# From a reduction's name in torch.distributed to the function (x, y, out=) that joins two tensors.
REDUCTIONS: dict[str, Reduction] = {
    "sum": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def reduce_into(out: torch.Tensor, parts: Sequence[torch.Tensor], reduction: Reduction) -> None:
    """Reduce all parts into `out`, in order. `out` may be the first of them."""
    first, *rest = parts
    if len(rest) > 1 and out.dtype in (torch.float16, torch.bfloat16):
        wide = first.float()  # rounded once
        for part in rest:
            reduction(wide, part.float(), out=wide)
        out.copy_(wide)
        return
    for part in rest:
        reduction(first, part, out=out)
        first = out
    if first is not out:
        out.copy_(first)
