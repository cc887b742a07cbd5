"""Synchronized batch norm, also on CPUs."""

from __future__ import annotations

from typing import Any

import torch

from ronde.compat.horovod import operations as ops
from ronde.compat.horovod.basics import size
from ronde.compat.horovod.operations import Sum, synchronize
from ronde.patching.torch_internals import BatchNorm

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(BatchNorm):
    """Batch norm with statistics of all ranks, like `torch.nn.SyncBatchNorm`.

    Input: [rows, channels, ...]. In evaluation mode it is a plain batch norm.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input) [R718]")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not self.training and self.track_running_stats:
            return super().forward(input)
        if size() == 1:
            return super().forward(input)
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        made: Any = _Normalized.apply(input, self.weight, self.bias, self.eps)
        output, mean, variance, count = made
        if self.training and self.track_running_stats:
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            with torch.no_grad():
                self.running_mean.lerp_(mean, momentum)
                self.running_var.lerp_(variance * (count / (count - 1).clamp(min=1)), momentum)
        return output


def _summed(*values: torch.Tensor) -> list[torch.Tensor]:
    """Sum tensors over ranks in one exchange; each is [channels] or a scalar."""
    flat = torch.cat([each.reshape(-1) for each in values])
    whole = synchronize(ops.allreduce_async_(flat, op=Sum))
    return list(whole.split([each.numel() for each in values]))


class _Normalized(torch.autograd.Function):
    """Normalization with statistics of all ranks: `(x - mean) / sqrt(variance + eps) * weight + bias`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Any, bias: Any, eps: float) -> Any:
        axes = [axis for axis in range(x.dim()) if axis != 1]
        shape = [1, -1] + [1] * (x.dim() - 2)
        rows = torch.tensor([x.numel() / x.shape[1]], dtype=x.dtype, device=x.device)
        total, count = _summed(x.sum(axes), rows)
        mean = total / count
        (squares,) = _summed((x - mean.view(shape)).square().sum(axes))
        variance = squares / count
        inverse = (variance + eps).rsqrt()
        normal = (x - mean.view(shape)) * inverse.view(shape)
        ctx.save_for_backward(normal, inverse, weight, count)
        ctx.axes, ctx.shape = axes, shape
        out = normal if weight is None else normal * weight.view(shape) + bias.view(shape)
        ctx.mark_non_differentiable(mean, variance, count)
        return out, mean, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient = gradients[0]
        normal, inverse, weight, count = ctx.saved_tensors
        axes, shape = ctx.axes, ctx.shape
        sums, products = gradient.sum(axes), (gradient * normal).sum(axes)
        all_sums, all_products = _summed(sums, products)
        scale = inverse if weight is None else inverse * weight
        mean, slope = (all_sums / count).view(shape), (all_products / count).view(shape)
        of_input = scale.view(shape) * (gradient - mean - normal * slope)
        if weight is None:
            return of_input, None, None, None
        return of_input, products, sums, None
