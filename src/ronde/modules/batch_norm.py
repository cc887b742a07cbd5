"""Batch normalization with the statistics of the global batch.

Forward gathers every rank's (mean, variance, count) and combines them as Chan, Golub and LeVeque (1979) do,
not as E[x^2] - E[x]^2; backward adds two sums per channel over ranks: one collective for each direction. The
gradients of weight and bias are these very sums before they are added over ranks: they stay local, and the
reducer averages them with all others.

The passes over whole activations are torch's own kernels, given global statistics: normalizing, and the
input's gradient, are both a scale and a shift per channel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function

from ronde.patching.patches import Patches
from ronde.tensor.context import Context, Region
from ronde.tensor.edges import SyncSum

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
        if not training or not _is_watched(context):
            return plain_functional(input, running_mean, running_var, weight, bias, training, momentum, eps)
        return _global_batch_norm(context, input, running_mean, running_var, weight, bias, momentum, eps)

    def native(  # noqa: PLR0913 - torch.batch_norm's own parameters
        input: torch.Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
        momentum: float, eps: float, cudnn_enabled: bool,
    ) -> torch.Tensor:  # fmt: skip
        if training and _is_watched(context):
            return batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
        return plain_native(
            input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled
        )

    patches.set(torch.nn.functional, "batch_norm", batch_norm)
    patches.set(torch, "batch_norm", native)


def _is_watched(context: Context) -> bool:
    """Return whether a batch norm called here may see only part of a batch."""
    return context.region in (Region.SHARDED, Region.OBSERVED) and not context.standing.batchless


def _channels(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Reshape [C] for broadcasting over [N, C, ...]."""
    return value.view(1, -1, *([1] * (like.dim() - 2)))


def _global_batch_norm(
    context: Context, input: torch.Tensor, running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None, weight: torch.Tensor | None, bias: torch.Tensor | None,
    momentum: float, eps: float,
) -> torch.Tensor:  # fmt: skip
    return _Normalize.apply(input, weight, bias, (running_mean, running_var), momentum, eps, context)


class _Normalize(Function):
    """(x - mean) / sqrt(var + eps) * weight + bias with global statistics."""

    # Tells observed calls that rows of the batch are combined here on purpose.
    normalizes_whole_batch = True

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
        running: tuple[torch.Tensor | None, torch.Tensor | None], momentum: float, eps: float,
        context: Context,
    ) -> torch.Tensor:  # fmt: skip
        # Half precision is only stored.
        work = torch.float64 if input.dtype is torch.float64 else torch.float32
        value = _in(work, input)
        mean, variance, count = _combine(context, value)
        running_mean, running_var = running
        if running_mean is not None and running_var is not None:
            # By `.data`, as torch's kernel does: no version is counted, older graphs remain of use.
            running_mean.data.lerp_(_in(running_mean.dtype, mean), momentum)
            unbiased = torch.addcdiv(variance, variance, count - 1)
            running_var.data.lerp_(_in(running_var.dtype, unbiased), momentum)
        ctx.save_for_backward(input, weight, mean, variance, count)
        ctx.eps, ctx.context = eps, context
        scale = weight if weight is None else _in(work, weight)
        shift = bias if bias is None else _in(work, bias)
        return _in(input.dtype, _scale_and_shift(value, scale, shift, mean, variance, eps))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        input, weight, mean, variance, count = ctx.saved_tensors
        work = mean.dtype
        value, grad = _in(work, input), _in(work, grads[0])
        scale = weight if weight is None else _in(work, weight)
        if torch.is_grad_enabled():
            found = _differentiable_gradients(ctx.context, value, grad, scale, count, ctx.eps)
        else:
            found = _gradients(ctx, value, grad, scale, mean, variance, count)
        needed = [of if asked else None for of, asked in zip(found, ctx.needs_input_grad, strict=False)]
        return (*needed, None, None, None, None)


def _combine(context: Context, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean [C], biased variance [C] and number of values per channel, over all ranks."""
    dims, channels = _all_but_channels(value), value.shape[1]
    if value.numel():
        mean = value.mean(dims)
        # The squares in one pass. The rounding error of the mean adds its square, which is negligible.
        variance = torch.ops.aten.mse_loss.default(value, _channels(mean, value), 0).mean(dims)
    else:
        mean = variance = value.new_zeros(channels)
    counts = torch.full((1,), value.numel() // max(channels, 1), dtype=torch.float64, device=value.device)
    # In fp64, as torch's own kernel accumulates: the combination must not add to its rounding.
    parts = context.comm.all_gather(torch.cat([mean, variance, counts]))
    means, variances, counts = parts.split([channels, channels, 1], 1)
    count = counts.sum()
    share = counts / count
    joint_mean = (means * share).sum(0)
    apart = means - joint_mean
    joint_variance = torch.addcmul(variances, apart, apart).mul_(share).sum(0)
    return joint_mean.to(value.dtype), joint_variance.to(value.dtype), count


def _gradients(
    ctx: Any, value: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor | None,
    mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor,
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Compute the gradients of input, weight and bias."""
    if value.numel():
        # The CPU's kernel reads mean and variance; CUDA's reads the mean and the inverse deviation, which
        # follow, and returns no gradient for a missing weight.
        invstd, scale = (variance + ctx.eps).rsqrt_(), torch.ones_like(mean) if weight is None else weight
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward.default(
            grad, value, scale, mean, variance, mean, invstd, False, ctx.eps, [False, True, True]
        )
    else:
        of_weight, of_bias = torch.zeros_like(mean), torch.zeros_like(mean)
    if not ctx.needs_input_grad[0]:
        return None, of_weight, of_bias
    sums = ctx.context.comm.all_reduce(torch.stack([of_weight, of_bias]))
    fall = (variance + ctx.eps).rsqrt_().neg_()
    if weight is not None:
        fall.mul_(weight)
    slope, shift = sums.mul_(fall).div_(count).unbind()
    inner = _scale_and_shift(value, slope, shift, mean, variance, ctx.eps)
    return inner.addcmul_(grad, _channels(fall, grad), value=-1), of_weight, of_bias


def _scale_and_shift(
    value: torch.Tensor, scale: torch.Tensor | None, shift: torch.Tensor | None, mean: torch.Tensor,
    variance: torch.Tensor, eps: float,
) -> torch.Tensor:  # fmt: skip
    """(value - mean) / sqrt(variance + eps) * scale + shift, per channel, in one pass."""
    if not value.numel():
        return torch.empty_like(value)
    return torch.native_batch_norm(value, scale, shift, mean, variance, False, 0.0, eps)[0]


def _differentiable_gradients(
    context: Context, value: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor | None,
    count: torch.Tensor, eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Compute the same gradients differentiably, for a gradient of the gradient."""
    dims = _all_but_channels(value)
    mean = SyncSum.apply(value.sum(dims), context) / count
    variance = SyncSum.apply((value - _channels(mean, value)).square().sum(dims), context) / count
    invstd = torch.rsqrt(variance + eps)
    normalized = (value - _channels(mean, value)) * _channels(invstd, value)
    of_weight, of_bias = (grad * normalized).sum(dims), grad.sum(dims)
    sums = SyncSum.apply(torch.stack([of_weight, of_bias]).double(), context) / count
    scale, shift = (_channels(part, value) for part in sums.to(grad.dtype).unbind())
    steepness = invstd if weight is None else invstd * weight
    inner = (grad - normalized * scale - shift) * _channels(steepness, value)
    return inner, of_weight, of_bias


def _all_but_channels(value: torch.Tensor) -> list[int]:
    return [0, *range(2, value.dim())]


def _in(dtype: torch.dtype, value: torch.Tensor) -> torch.Tensor:
    """Return `value.to(dtype)`, without a call if the dtype is right already."""
    return value if value.dtype is dtype else value.to(dtype)
