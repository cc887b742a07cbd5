"""Blocking collectives with autograd support."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ronde.compat.horovod import operations as ops
from ronde.compat.horovod.basics import ProcessSet, global_process_set, rank
from ronde.compat.horovod.compression import Compression
from ronde.compat.horovod.operations import Average, Sum, operation_of, synchronize

__all__ = [
    "allgather", "allreduce", "allreduce_", "alltoall", "broadcast", "broadcast_", "grouped_allgather",
    "grouped_allreduce", "grouped_allreduce_", "grouped_reducescatter", "reducescatter",
]  # fmt: skip


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grouped: bool, options: dict[str, Any], *given: Any) -> Any:
        ctx.options, ctx.grouped = options, grouped
        if grouped:
            return tuple(synchronize(ops.grouped_allreduce_async(given, **options)))
        return synchronize(ops.allreduce_async(next(iter(given)), **options))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        options = {**ctx.options, "name": None}
        if ctx.grouped:
            return None, None, *synchronize(ops.grouped_allreduce_async(gradients, **options))
        return None, None, synchronize(ops.allreduce_async(gradients[0], **options))


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over ranks; out of place and differentiable."""
    options = _options(operation_of(average, op), name, prescale_factor, postscale_factor, process_set)
    return _compressed(compression, [tensor], partial(_Allreduce.apply, False, options))[0]


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce tensors over ranks as one group; out of place and differentiable."""
    options = _options(operation_of(average, op), name, prescale_factor, postscale_factor, process_set)
    return _compressed(compression, tensors, partial(_Allreduce.apply, True, options))


def _options(
    op: int, name: str | None, before: float, after: float, process_set: ProcessSet
) -> dict[str, Any]:
    factors = {"prescale_factor": before, "postscale_factor": after}
    return {"op": op, "name": name, "process_set": process_set, **factors}


def _compressed(
    compression: Any, tensors: Sequence[torch.Tensor], exchange: Callable[..., Any]
) -> list[torch.Tensor]:
    """Compress tensors, call `exchange` on them, and decompress its results."""
    given = [compression.compress(each) for each in tensors]
    made = exchange(*(each for each, _ in given))
    made = made if isinstance(made, tuple) else (made,)
    return [compression.decompress(each, context) for each, (_, context) in zip(made, given, strict=True)]


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over ranks in place; not differentiable."""
    options = _options(operation_of(average, op), name, prescale_factor, postscale_factor, process_set)
    return synchronize(ops.allreduce_async_(tensor, **options))


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce tensors over ranks in place; not differentiable."""
    options = _options(operation_of(average, op), name, prescale_factor, postscale_factor, process_set)
    return synchronize(ops.grouped_allreduce_async_(tensors, **options))


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *given: Any) -> Any:
        ctx.process_set, ctx.rows = process_set, [each.shape[:1].numel() for each in given]
        if len(given) > 1:
            return tuple(synchronize(ops.grouped_allgather_async(given, name, process_set)))
        return synchronize(ops.allgather_async(next(iter(given)), name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Return this rank's rows of the averaged gradient, like Horovod."""
        process_set, place, found = ctx.process_set, ctx.process_set.rank(), []
        for gradient, mine in zip(gradients, ctx.rows, strict=True):
            mean = synchronize(ops.allreduce_async(gradient, op=Average, process_set=process_set))
            rows = synchronize(ops.allgather_async(torch.tensor([mine]), process_set=process_set)).tolist()
            start = sum(rows[:place])
            found.append(mean[start : start + mine])
        return None, None, *found


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate the tensors [rows, ...] of all ranks; the numbers of rows may differ."""
    return _Allgather.apply(name, process_set, tensor)  # type: ignore[return-value]


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Gather several tensors as one group, each like `allgather`."""
    if len(tensors) == 1:
        return [allgather(tensors[0], name, process_set)]
    made: Any = _Allgather.apply(name, process_set, *tensors)
    return list(made)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.root, ctx.process_set = root, process_set
        return synchronize(ops.broadcast_async(tensor, root, name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the averaged gradient at the root, zero elsewhere, like Horovod."""
        mean = synchronize(ops.allreduce_async(gradients[0], op=Average, process_set=ctx.process_set))
        return mean if rank() == ctx.root else torch.zeros_like(mean), None, None, None


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return a rank's tensor on all ranks."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[return-value]


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Broadcast a rank's tensor in place; not differentiable."""
    return synchronize(ops.broadcast_async_(tensor, root_rank, name, process_set))


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> Any:
        members = process_set.size() or 1
        given = [tensor.shape[0] // members] * members if splits is None else splits
        if splits is None and tensor.shape[0] % members:
            given = None  # `alltoall_async` raises the error
        received, ctx.received = synchronize(ops.alltoall_async(tensor, given, name, process_set))
        ctx.process_set = process_set
        ctx.mark_non_differentiable(ctx.received)
        return received if splits is None else (received, ctx.received)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        back, _ = synchronize(ops.alltoall_async(gradients[0], ctx.received, process_set=ctx.process_set))
        return back, None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the rows from all ranks; with `splits` also their counts, int32 [members]."""
    return _Alltoall.apply(tensor, splits, name, process_set)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, options: dict[str, Any], *given: Any) -> Any:
        ctx.options = options
        if len(given) > 1:
            return tuple(synchronize(ops.grouped_reducescatter_async(given, **options)))
        return synchronize(ops.reducescatter_async(next(iter(given)), **options))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Gather the gradient's rows, times the number of ranks for a sum, like Horovod."""
        process_set = ctx.options["process_set"]
        times = process_set.size() if ctx.options["op"] == Sum else 1
        factor = times * ctx.options["prescale_factor"] * ctx.options["postscale_factor"]
        found = [
            synchronize(ops.allgather_async(gradient * factor, process_set=process_set))
            for gradient in gradients
        ]
        return None, *found


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce a tensor [rows, ...] over ranks, and return this rank's share of rows."""
    options = _options(op, name, prescale_factor, postscale_factor, process_set)
    return _compressed(compression, [tensor], partial(_Reducescatter.apply, options))[0]


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduce and scatter several tensors as one group, each like `reducescatter`."""
    options = _options(op, name, prescale_factor, postscale_factor, process_set)
    return _compressed(compression, tensors, partial(_Reducescatter.apply, options))
