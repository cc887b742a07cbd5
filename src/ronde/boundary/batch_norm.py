"""Batch normalization with the statistics of the global batch.

Forward gathers every rank's (sum, sum of squared deviations, count) and combines them as Chan, Golub and
LeVeque (1979) do, not as E[x^2] - E[x]^2; backward adds two sums per channel over ranks: one collective for
each direction. The gradients of weight and bias are these very sums before they are added over ranks: they
stay local, and the reducer averages them with all others.

The passes over whole activations are torch's own kernels, given global statistics: normalizing, and the
input's gradient, are both scale * x + shift per channel.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    statistics = _combine(context, input.detach())
    if running_mean is not None and running_var is not None:
        unbiased = statistics.variance * (statistics.count / (statistics.count - 1))
        # By `.data`, as torch's kernel does: no version is counted, older graphs remain of use.
        running_mean.data.mul_(1 - momentum).add_(statistics.mean, alpha=momentum)
        running_var.data.mul_(1 - momentum).add_(unbiased, alpha=momentum)
    return _Normalize.apply(input, weight, bias, statistics, eps, context)


@dataclass(frozen=True, slots=True)
class _Statistics:
    """Of the global batch, in fp64: mean [C], biased variance [C], number of values per channel []."""

    mean: torch.Tensor
    variance: torch.Tensor
    count: torch.Tensor


def _combine(context: Context, input: torch.Tensor) -> _Statistics:
    value = input.to(_work(input))
    dims = _all_but_channels(value)
    channels = value.shape[1]
    count = value.numel() // max(channels, 1)
    total = value.sum(dims)
    # The squared differences in one pass. Rounding of the mean adds its square, which is nothing.
    mean = _channels(total / max(count, 1), value).expand_as(value)
    deviation = torch.ops.aten.mse_loss.default(value, mean, 0).sum(dims)
    # In fp64, as torch's own kernel accumulates: the combination must not add to its rounding.
    packed = torch.cat([total.double(), deviation.double(), total.new_tensor([count], dtype=torch.float64)])
    return _joined(context.comm.all_gather(packed), channels)


def _joined(parts: torch.Tensor, channels: int) -> _Statistics:
    """The statistics of all ranks' values from [ranks, C sums | C sums of squared deviations | count]."""
    whole, counts = parts.sum(0), parts[:, -1:]
    count = whole[-1]
    mean = whole[:channels] / count
    apart = torch.addcmul(parts[:, :channels], counts, mean, value=-1)
    between = apart.square_().div_(counts.clamp(min=1)).sum(0)  # a rank without rows has no sum either
    return _Statistics(mean, between.add_(whole[channels:-1]).div_(count), count)


def _work(input: torch.Tensor) -> torch.dtype:
    """What is computed in: half precision is only stored."""
    return torch.promote_types(input.dtype, torch.float32)


def _all_but_channels(value: torch.Tensor) -> list[int]:
    return [0, *range(2, value.dim())]


def _scale_and_shift(
    value: torch.Tensor, scale: torch.Tensor | None, shift: torch.Tensor | None, mean: torch.Tensor,
    variance: torch.Tensor, eps: float,
) -> torch.Tensor:  # fmt: skip
    """(value - mean) / sqrt(variance + eps) * scale + shift, per channel, in one pass."""
    if not value.numel():
        return torch.empty_like(value)
    return torch.native_batch_norm(value, scale, shift, mean, variance, False, 0.0, eps)[0]


class _Normalize(Function):
    """(x - mean) / sqrt(var + eps) * weight + bias with global statistics."""

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
        statistics: _Statistics, eps: float, context: Context,
    ) -> torch.Tensor:  # fmt: skip
        work = _work(input)
        mean, variance = statistics.mean.to(work), statistics.variance.to(work)
        ctx.save_for_backward(input, weight, mean, variance, statistics.count)
        ctx.eps, ctx.context = eps, context
        scale, shift = _in(work, weight), _in(work, bias)
        return _scale_and_shift(input.to(work), scale, shift, mean, variance, eps).to(input.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        input, weight, mean, variance, count = ctx.saved_tensors
        work = mean.dtype
        value, grad, scale = input.to(work), grads[0].to(work), _in(work, weight)
        if torch.is_grad_enabled():
            found = _differentiable_gradients(ctx.context, value, grad, scale, count, ctx.eps)
        else:
            found = _gradients(ctx, value, grad, scale, mean, variance, count)
        needed = (of if asked else None for of, asked in zip(found, ctx.needs_input_grad, strict=False))
        return (*needed, None, None, None)


def _gradients(
    ctx: Any, value: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor | None,
    mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor,
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The gradients of input, weight and bias."""
    if value.numel():
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward.default(
            grad, value, None, mean, variance, None, None, False, ctx.eps, [False, True, True]
        )
    else:
        of_weight, of_bias = torch.zeros_like(mean), torch.zeros_like(mean)
    if not ctx.needs_input_grad[0]:
        return None, of_weight, of_bias
    sums = ctx.context.comm.all_reduce(torch.stack([of_weight, of_bias]).double())
    steepness = torch.rsqrt(variance + ctx.eps)
    if weight is not None:
        steepness.mul_(weight)
    scale, shift = sums.div_(count).to(mean.dtype).mul_(steepness).neg_().unbind()
    inner = _scale_and_shift(value, scale, shift, mean, variance, ctx.eps)
    return inner.addcmul_(grad, _channels(steepness, grad)), of_weight, of_bias


def _differentiable_gradients(
    context: Context, value: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor | None,
    count: torch.Tensor, eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The same as functions of input, weight and gradient, for a gradient of the gradient."""
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


def _in(work: torch.dtype, parameter: torch.Tensor | None) -> torch.Tensor | None:
    return None if parameter is None else parameter.to(work)
