"""The differentiable edges between replicated values and shards, each the backward of another.

Convention, with W ranks: the true gradient of a replicated value is the mean over ranks of the local ones;
the local gradient of a shard is W times the true one. Parameter gradients are then *averaged*: this sums
gradients computed on shards, and averages equal copies of gradients computed in replica, under any mixture
and any accumulation. All edges are differentiable any number of times.

Where ranks cut a model, not a batch, all compute equal replicated values, and local gradients are the true
ones: there `Context.weight` is 1 in the place of W, and Leave is the sum.

    edge          forward                          backward
    Slice         whole value -> this rank's rows  all-gather, divided by W
    Gather        shard -> whole value             this rank's rows, times W
    Enter         identity                         mean over ranks
    Leave         mean over ranks                  identity averaged (Enter)
    EnterLeaf     identity                         times the number of ranks
    SumRanks      shard's sum -> whole sum         times W
    SyncSum       all-reduce among shards          all-reduce among shards
    Scatter       summands -> this rank's rows     all-gather (Share)
    Share         rows -> whole value on shards    reduce-scatter (Scatter)

EnterLeaf is Enter where the mean over these ranks and others is made of the leaf's whole gradient, once.
Scatter is Slice after SumRanks, and Share Enter after Gather, with half of their bytes: factors cancel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function

from ronde.errors import UsageError
from ronde.patching.torch_internals import FakeTensor
from ronde.tensor.context import Context
from ronde.tensor.deferred import DeferredScalar, defer, resolve
from ronde.tensor.layout import Layout, memory_order

__all__ = [
    "Enter", "EnterLeaf", "Gather", "Leave", "Scatter", "Share", "Slice", "SumRanks", "SyncSum",
    "gather_data", "scatter_data", "sum_ranks_deferred",
]  # fmt: skip


def gather_data(context: Context, local: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Gather the whole value from every rank's rows, without a graph.

    The result has the memory order of the shards.
    """
    _check_thread(context)
    order = _agreed_order(context, local, layout)
    dense, cut = local.detach().permute(order), layout.at(order.index(layout.dim))
    absent = isinstance(local, FakeTensor)  # the value is on another pipeline stage
    whole = dense.new_empty(cut.global_shape(dense.shape)) if absent else _gather_dense(context, dense, cut)
    return whole.permute([order.index(dim) for dim in range(local.dim())])


def _agreed_order(context: Context, local: torch.Tensor, layout: Layout) -> list[int]:
    """Return an order of dimensions in memory that all ranks agree on.

    A collective for some shapes.

    A shard with a single row leaves the order open; where only some ranks have several rows, their order
    counts.
    """
    order = memory_order(local)
    if isinstance(local, FakeTensor):
        return order
    if len(order) < 2:
        return order
    source = layout.owner
    if source is None:
        if not layout.world_size < layout.rows < 2 * layout.world_size:
            return order
        source = layout.world_size - 1
    agreed = torch.tensor(order, device=context.comm.control_device)
    return context.comm.broadcast(agreed, source=source).tolist()


def _check_thread(context: Context) -> None:
    """Raise an error if several threads read values that need collectives.

    One thread beside the main one may do so: if it gets out of step with other ranks, the collectives find
    that.
    """
    if context.is_in_step() or context.reads_alone():
        return
    raise UsageError(
        "more than one thread uses values that are spread over the ranks, such as a model's output, in an "
        "order that may differ between ranks; use them in the script's main thread, and give threads plain "
        "values, such as output.numpy() [R374]"
    )


def _gather_dense(context: Context, local: torch.Tensor, layout: Layout) -> torch.Tensor:
    if layout.owner is not None:
        whole = local.new_empty(layout.global_shape(local.shape))
        if layout.owner == context.rank:
            whole.copy_(local)
        return context.comm.broadcast(whole, layout.owner)
    sizes = [layout.local_size(rank) for rank in range(context.world_size)]
    if len(set(sizes)) == 1:
        # As shards lie in memory: to move the cut dimension to the front would copy element by element.
        parts = context.comm.all_gather(local)
        if layout.dim == 0 and layout.outer == 1 and not layout.mirrored:
            return parts.flatten(0, 1)
        return layout.assemble(parts.unbind(0))
    uneven = context.comm.all_gather_uneven(local.movedim(layout.dim, 0), sizes)
    return layout.assemble([part.movedim(0, layout.dim) for part in uneven])


class Slice(Function):
    """Cut a replicated value into this rank's shard."""

    @staticmethod
    def forward(ctx: Any, full: torch.Tensor, context: Context, layout: Layout) -> torch.Tensor:
        ctx.context, ctx.layout = context, layout
        return layout.take(full, context.rank).clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        return Gather.apply(grad, ctx.context, ctx.layout) / ctx.context.weight, None, None


class Gather(Function):
    """Gather shards into the replicated value."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, context: Context, layout: Layout) -> torch.Tensor:
        ctx.context, ctx.layout = context, layout
        whole = gather_data(context, local, layout)
        # The same memory in a tensor that is not a view: a view made in here could not be changed in place.
        return whole.new_empty(0).set_(whole)  # pyright: ignore[reportArgumentType]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        own, weight = Slice.apply(grad, ctx.context, ctx.layout), ctx.context.weight
        return own if weight == 1 else own * weight, None, None


def _sum(context: Context, value: torch.Tensor) -> torch.Tensor:
    """Sum a value over ranks, without a graph."""
    _check_thread(context)
    own = value.detach().clone(memory_format=torch.contiguous_format)
    return own if isinstance(value, FakeTensor) else context.comm.all_reduce(own)


class Enter(Function):
    """Use a replicated value on shards."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, context: Context) -> torch.Tensor:
        ctx.context = context
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return Leave.apply(grads[0], ctx.context), None


class Leave(Function):
    """Average local gradients of a replicated value to its true gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, context: Context) -> torch.Tensor:
        ctx.context = context
        return _sum(context, value) / context.weight

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return Enter.apply(grads[0], ctx.context), None


class EnterLeaf(Function):
    """Use a leaf on shards; the reducer averages its gradients later."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, context: Context) -> torch.Tensor:
        ctx.context = context
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _LeaveLater.apply(grads[0], ctx.context), None


class _LeaveLater(Function):
    """A rank's part of `Leave`, for a mean over ranks that is computed later."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, context: Context) -> torch.Tensor:
        ctx.context = context
        return value * (context.world_size // context.weight)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return EnterLeaf.apply(grads[0], ctx.context), None


class SumRanks(Function):
    """Sum a value over all shards; the result is replicated."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, context: Context) -> torch.Tensor:
        ctx.context = context
        return _sum(context, value)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _Spread.apply(grads[0], ctx.context), None


class _Arrived(Function):
    """`SumRanks` of a value with a reduction that was started before."""

    @staticmethod
    def forward(
        ctx: Any, value: torch.Tensor, total: torch.Tensor, divisor: float | torch.Tensor, context: Context
    ) -> torch.Tensor:
        ctx.context, ctx.divisor = context, divisor
        return (total / divisor).to(value.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        spread: Any = _Spread.apply(grads[0], ctx.context)
        return (spread / ctx.divisor).to(spread.dtype), None, None, None


def sum_ranks_deferred(
    context: Context, value: torch.Tensor, divisor: float | torch.Tensor = 1
) -> DeferredScalar:
    """Start `SumRanks(value) / divisor` of a scalar; reading the result waits for it.

    Args:
        value: summand of this rank, without dimensions.
        divisor: a positive number, by which the sum is divided, or a float64 tensor without dimensions,
            which the host does not read.
    """
    _check_thread(context)
    value = resolve(value) if isinstance(value, DeferredScalar) else value  # deferred by an inner group
    if isinstance(value, FakeTensor):
        return (value / divisor).to(value.dtype)  # pyright: ignore[reportReturnType]
    with torch.inference_mode(False):  # it is written to on arrival, perhaps outside of inference mode
        total = value.detach().to(torch.float64, copy=True)
    pending = context.comm.all_reduce_async(total)

    def arrive() -> torch.Tensor:
        pending.wait()
        return _Arrived.apply(value, total, divisor, context)

    def number() -> torch.Tensor:
        pending.wait()
        return (total / divisor).to(value.dtype)

    if isinstance(divisor, torch.Tensor):
        share = (value.double() * (context.weight / divisor)).to(value.dtype)
    else:
        share = value * (context.weight / divisor)
    return defer(context, share, arrive, number=number)


class _Spread(Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, context: Context) -> torch.Tensor:
        ctx.context = context
        return value * context.weight

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return SumRanks.apply(grads[0], ctx.context), None


class SyncSum(Function):
    """Sum a value over ranks; every shard then uses the sum.

    Synchronized batch normalization needs its statistics so.
    """

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, context: Context) -> torch.Tensor:
        ctx.context = context
        return _sum(context, value)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return SyncSum.apply(grads[0], ctx.context), None


class Scatter(Function):
    """Sum over ranks, and keep this rank's rows of the sum (reduce-scatter)."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, context: Context, layout: Layout) -> torch.Tensor:
        ctx.context, ctx.layout = context, layout
        return scatter_data(context, value, layout)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return Share.apply(grads[0], ctx.context, ctx.layout), None, None


class Share(Function):
    """Gather the whole value, from which each rank computes its part (all-gather)."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, context: Context, layout: Layout) -> torch.Tensor:
        ctx.context, ctx.layout = context, layout
        return gather_data(context, local, layout)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return Scatter.apply(grads[0], ctx.context, ctx.layout), None, None


def scatter_data(context: Context, value: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Reduce-scatter a value: this rank's rows of the sum over ranks, without a graph.

    The result has the memory order of the summands.
    """
    _check_thread(context)
    order = memory_order(value)
    dense, cut = value.detach().permute(order), layout.at(order.index(layout.dim))
    pieces = [cut.take(dense, rank) for rank in range(context.world_size)]
    own = pieces[context.rank].new_empty(pieces[context.rank].shape)
    if not isinstance(value, FakeTensor):
        flat = [[piece.reshape(-1)] for piece in pieces]
        context.comm.reduce_scatter_async(own.view(-1), flat).wait()
    return own.permute([order.index(dim) for dim in range(value.dim())])
