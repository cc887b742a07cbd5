"""Batch normalization with the statistics of the global batch.

Forward gathers every rank's (count, mean, sum of squared deviations) and combines them as Chan, Golub and
LeVeque (1979) do, not as E[x^2] - E[x]^2; backward adds two sums per channel over ranks. Parameter
gradients stay local: the reducer averages them with all others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function

from ronde.boundary.context import Context, Region
from ronde.boundary.edges import SyncSum
from ronde.boundary.patches import Patches

__all__ = ["install"]


def install(patches: Patches, context: Context) -> None:
    """Replace `torch.nn.functional.batch_norm` and `torch.batch_norm` where a model runs on shards."""
    plain_functional = torch.nn.functional.batch_norm
    plain_native = torch.batch_norm

    def batch_norm(
        input: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        if not training or context.region not in (Region.SHARDED, Region.REHEARSAL):
            return plain_functional(input, running_mean, running_var, weight, bias, training, momentum, eps)
        if context.region is Region.REHEARSAL:
            # A copy: what follows may work in place, and the result is never the input itself.
            return _affine(input.clone(), weight, bias)
        return _global_batch_norm(context, input, running_mean, running_var, weight, bias, momentum, eps)

    def native(  # noqa: PLR0913 - torch.batch_norm's own parameters
        input: torch.Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
        momentum: float, eps: float, cudnn_enabled: bool,
    ) -> torch.Tensor:  # fmt: skip
        if training and context.region in (Region.SHARDED, Region.REHEARSAL):
            return batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
        return plain_native(
            input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled
        )

    patches.set(torch.nn.functional, "batch_norm", batch_norm)
    patches.set(torch, "batch_norm", native)


def _channels(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """[C] shaped for broadcasting over [N, C, ...]."""
    return value.view(1, -1, *([1] * (like.dim() - 2)))


def _affine(input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
    """What a rehearsal sees: statistics of the batch are known to be global, all else must be row by row."""
    out = input if weight is None else input * _channels(weight, input)
    return out if bias is None else out + _channels(bias, input)


def _global_batch_norm(
    context: Context, input: torch.Tensor, running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None, weight: torch.Tensor | None, bias: torch.Tensor | None,
    momentum: float, eps: float,
) -> torch.Tensor:  # fmt: skip
    mean, variance, count = _combine(context, input)
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            unbiased = variance * (count / (count - 1))
            # By `.data`, as torch's kernel does: no version is counted, older graphs remain of use.
            running_mean.data.mul_(1 - momentum).add_(mean.to(running_mean.dtype), alpha=momentum)
            running_var.data.mul_(1 - momentum).add_(unbiased.to(running_var.dtype), alpha=momentum)
    work = torch.promote_types(input.dtype, torch.float32)
    invstd = torch.rsqrt(variance + eps)
    normalized = _Normalize.apply(input, mean.to(work), invstd.to(work), count.to(work), eps, context)
    return _affine(normalized, weight, bias).to(input.dtype)


def _combine(context: Context, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean [C], biased variance [C] and number of values per channel, over all ranks."""
    value = input.detach()
    if value.dtype in (torch.float16, torch.bfloat16):
        value = value.float()
    dims = [0, *range(2, value.dim())]
    variance, mean = torch.var_mean(value, dims, correction=0)
    count = value.numel() // value.shape[1]
    # In fp64, as torch's own kernel accumulates: the combination must not add to its rounding.
    mean, variance = mean.double(), variance.double()
    packed = torch.cat([mean, variance * count, mean.new_tensor([count])])
    parts = context.comm.all_gather(packed)
    channels = value.shape[1]
    means, deviations, counts = parts[:, :channels], parts[:, channels : 2 * channels], parts[:, -1:]
    total = counts.sum()
    joint_mean = (means * counts).sum(0) / total
    joint_deviation = deviations.sum(0) + ((means - joint_mean).square() * counts).sum(0)
    return joint_mean, joint_deviation / total, total


class _Normalize(Function):
    """(x - mean) / sqrt(var + eps) with global statistics."""

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, count: torch.Tensor,
        eps: float, context: Context,
    ) -> torch.Tensor:  # fmt: skip
        ctx.save_for_backward(input, mean, invstd, count)
        ctx.eps, ctx.context = eps, context
        return (input - _channels(mean, input)) * _channels(invstd, input)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        input, mean, invstd, count = ctx.saved_tensors
        if torch.is_grad_enabled():
            mean, invstd = _statistics(ctx.context, input, count, ctx.eps)
        dims = [0, *range(2, input.dim())]
        centred = (input - _channels(mean, input)) * _channels(invstd, input)
        sums = torch.stack([part.sum(dims, dtype=torch.float64) for part in (grad, grad * centred)])
        sums = (SyncSum.apply(sums, ctx.context) / count).to(grad.dtype)
        inner = grad - _channels(sums[0], input) - centred * _channels(sums[1], input)
        return (inner * _channels(invstd, input)).to(input.dtype), None, None, None, None, None


def _statistics(context: Context, input: torch.Tensor, count: torch.Tensor, eps: float) -> Any:
    """Mean and 1/std as functions of the input, for a gradient of the gradient."""
    dims = [0, *range(2, input.dim())]
    mean = SyncSum.apply(input.sum(dims), context) / count
    variance = SyncSum.apply((input - _channels(mean, input)).square().sum(dims), context) / count
    return mean, torch.rsqrt(variance + eps)
