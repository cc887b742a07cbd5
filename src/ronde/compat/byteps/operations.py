"""BytePS's `push_pull` and broadcasts, on Horovod's operations."""

from __future__ import annotations

from typing import Any

import torch

from ronde.compat.horovod import functions
from ronde.compat.horovod import operations as ops
from ronde.compat.horovod.compression import Compression
from ronde.compat.horovod.operations import Average, Sum, synchronize
from ronde.compat.horovod.optimizer import DistributedOptimizer as OfHorovod

__all__ = [
    "DistributedOptimizer", "broadcast_optimizer_state", "broadcast_parameters", "declare", "push_pull",
    "push_pull_async", "push_pull_async_inplace", "push_pull_inplace",
]  # fmt: skip


def declare(name: str, **options: Any) -> int:
    """Return 0: servers would need a tensor's name in advance, but none are used."""
    return 0


def push_pull_async_inplace(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> int:
    """Start to sum or average a tensor over ranks, in place; return a handle.

    Args:
        version, priority: accepted without effect: tensors are exchanged in the order of readiness.
    """
    return ops.allreduce_async_(tensor, name=name and f"push_pull.{name}", op=Average if average else Sum)


def push_pull_async(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> int:
    """Start to sum or average a tensor, out of place; return a handle."""
    return ops.allreduce_async(tensor, name=name and f"push_pull.{name}", op=Average if average else Sum)


def push_pull_inplace(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> torch.Tensor:
    """Sum or average a tensor over ranks, in place."""
    return synchronize(push_pull_async_inplace(tensor, average, name))


class _PushPull(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, average: bool, name: str | None) -> torch.Tensor:
        ctx.average = average
        return synchronize(push_pull_async(tensor, average, name))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return synchronize(push_pull_async(gradients[0], ctx.average)), None, None


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: Any = Compression.none,
) -> torch.Tensor:
    """Sum or average a tensor over ranks; out of place and differentiable."""
    given, context = compression.compress(tensor)
    return compression.decompress(_PushPull.apply(given, average, name), context)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Any = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    **options: Any,
) -> Any:
    """Wrap an optimizer so that gradients are averaged during backward.

    Raises:
        NotImplementedError: an option is not supported.
        ValueError: an argument is invalid, as for Horovod's `DistributedOptimizer`.
    """
    if options:
        raise NotImplementedError(
            f"DistributedOptimizer: {', '.join(sorted(options))} is not in this version [R726]"
        )
    return OfHorovod(optimizer, named_parameters, compression, backward_passes_per_step)


def broadcast_parameters(params: Any, root_rank: int, prefix: str = "Parameter.") -> None:
    """Broadcast a rank's tensors to all ranks, in place.

    Args:
        prefix: prefix of names on servers; accepted without effect.
    """
    functions.broadcast_parameters(params, root_rank)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, prefix: str = "Parameter."
) -> None:
    """Broadcast a rank's optimizer state and options to all ranks.

    Args:
        prefix: accepted without effect.
    """
    functions.broadcast_optimizer_state(optimizer, root_rank)
