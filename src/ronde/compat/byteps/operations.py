"""`push_pull`, and what stands around it."""

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
    """Say a tensor's name before it is first exchanged: needed by servers, of which there are none."""
    return 0


def push_pull_async_inplace(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> int:
    """Begin to add or average a tensor over ranks, in place.

    Args:
        version, priority: taken, and without effect: exchanges go in the order in which they are ready.
    """
    return ops.allreduce_async_(tensor, name=name and f"push_pull.{name}", op=Average if average else Sum)


def push_pull_async(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> int:
    """Begin to add or average a tensor over ranks; the result is a new one."""
    return ops.allreduce_async(tensor, name=name and f"push_pull.{name}", op=Average if average else Sum)


def push_pull_inplace(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> torch.Tensor:
    """Add or average a tensor over ranks, in place."""
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
    """A tensor added or averaged over ranks, as a new one, with a gradient."""
    given, context = compression.compress(tensor)
    return compression.decompress(_PushPull.apply(given, average, name), context)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Any = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    **options: Any,
) -> Any:
    """An optimizer whose gradients are averaged over ranks while backward goes on.

    Raises:
        NotImplementedError: an option is given that is not there.
        ValueError: as Horovod's.
    """
    if options:
        raise NotImplementedError(
            f"DistributedOptimizer: {', '.join(sorted(options))} is not in this version"
        )
    return OfHorovod(optimizer, named_parameters, compression, backward_passes_per_step)


def broadcast_parameters(params: Any, root_rank: int, prefix: str = "Parameter.") -> None:
    """Copy a rank's tensors into those of all.

    Args:
        prefix: stands before names that servers know; taken, and without effect.
    """
    functions.broadcast_parameters(params, root_rank)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, prefix: str = "Parameter."
) -> None:
    """Have a rank's options and state in the optimizers of all.

    Args:
        prefix: as that of `broadcast_parameters`.
    """
    functions.broadcast_optimizer_state(optimizer, root_rank)
