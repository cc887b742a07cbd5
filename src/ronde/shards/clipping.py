"""`clip_grad_norm_` for sharded gradients: norms are computed locally, then combined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.patching.torch_internals import foreach_mul_
from ronde.sync.gradient_shards import GradientShards

__all__ = ["clip_parts"]


@torch.no_grad()
def clip_parts(
    comm: Comm,
    parts: GradientShards,
    tensors: Sequence[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor | None:
    """Scale the gradients of `tensors` in place, to a norm of at most `max_norm`.

    Returns:
        the norm of all gradients before, in their dtype and on their device (wherever parts live), the same
        on all ranks; None where whole gradients are needed: for several dtypes or devices, a norm that is not
        a sum of powers, or an error.
    """
    order = float(norm_type)
    own = parts.parts(tensors)
    whole = [gradient for tensor in tensors if tensor not in parts and (gradient := tensor.grad) is not None]
    kinds = parts.kinds(tensors) | {(gradient.dtype, gradient.device) for gradient in whole}
    if len(kinds) != 1 or not own or order <= 0:
        return None
    (dtype, device), *_ = kinds
    largest = math.isinf(order)
    local = _measure(parts.counted(tensors), order, dtype, device)
    if largest:
        local = comm.all_gather(local).amax(0)
        total = torch.maximum(local, _measure(whole, order, dtype, device))
    else:
        total = (comm.all_reduce(local) + _measure(whole, order, dtype, device)) ** (1 / order)
    total = total.to(dtype)
    if error_if_nonfinite and not bool(total.isfinite()):
        return None  # torch's own error
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    _scale(own, factor)
    _scale(whole, factor)
    return total


def _scale(gradients: list[Any], factor: torch.Tensor) -> None:
    if gradients:
        foreach_mul_(gradients, factor.to(gradients[0].device))


def _measure(
    gradients: Sequence[torch.Tensor], order: float, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return the maximum element, or the sum of norms to the power `order`.

    Computed in at least single precision.
    """
    wide = torch.promote_types(dtype, torch.float32)
    found = [
        torch.linalg.vector_norm(gradient, order, dtype=wide) for gradient in gradients if gradient.numel()
    ]
    if not found:
        return torch.zeros((), dtype=wide, device=device)
    norms = torch.stack(found).to(device)
    return norms.amax() if math.isinf(order) else norms.pow(order).sum()
