"""Graph edges between ranks: their backward sends or receives gradients.

Autograd's engine runs the node that was made last first, so a rank's backward handles its messages in the
reverse order of its forward. All ranks have the order of one forward, so no two wait for one another.
Micro-batches run backward last to first (Huang et al. 2019, "GPipe"), driven by the script's own backward
alone.

All nodes of a call lie between two: `Tie`, made first, through which the call has its inputs and the
parameters that all ranks have, and `Join`, made last, which gives its output. So each message that forward
has sent has its gradient sent back, whatever the loss is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ronde.comm.process_group import Comm
from ronde.parallel.pipeline.remote_tensors import packed
from ronde.sync.sums import GradientForm, sums_over_ranks

__all__ = ["GraphEnd", "Join", "Received", "Sent", "Tie"]

_Function: Any = torch.autograd.Function


class Tie(_Function):
    """Token that leads to the start of a call, and replicated tensors.

    Gradients of the tensors are summed over ranks.
    """

    @staticmethod
    def forward(ctx: Any, comm: Comm, anchor: torch.Tensor, *tensors: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.comm = comm
        ctx.forms = [GradientForm.of(each) for each in tensors]
        return anchor.new_zeros(()), *(each.view_as(each) for each in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Any, *gradients: torch.Tensor | None) -> Any:
        return None, None, *sums_over_ranks(ctx.comm, gradients, ctx.forms)


class Sent(_Function):
    """Send a tensor to a rank.

    The result is a scalar, through which backward reaches this node.

    Args:
        both: groups of the same ranks, for tensors and for their gradients.
    """

    @staticmethod
    def forward(
        ctx: Any,
        both: tuple[Comm, Comm],
        to: int,
        token: torch.Tensor,
        tensor: torch.Tensor,
        under_way: list[Any],
    ) -> torch.Tensor:
        ctx.comm, ctx.to = both[1], to
        sent = packed(tensor)
        ctx.kind = sent.shape, sent.stride(), sent.dtype, sent.device
        under_way.append(both[0].send(sent, to))
        return token.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Any) -> Any:
        shape, stride, dtype, device = ctx.kind
        room = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        gradient = ctx.comm.receive(room, ctx.to)
        return None, None, None, gradient, None


class Received(_Function):
    """Receive a tensor from a rank."""

    @staticmethod
    def forward(
        ctx: Any,
        both: tuple[Comm, Comm],
        source: int,
        token: torch.Tensor,
        room: torch.Tensor,
        under_way: list[Any],
    ) -> torch.Tensor:
        ctx.comm, ctx.source, ctx.under_way = both[1], source, under_way
        ctx.stride = room.stride()
        return both[0].receive(room, source)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        laid = torch.empty_strided(gradient.shape, ctx.stride, dtype=gradient.dtype, device=gradient.device)
        ctx.under_way.append(ctx.comm.send(laid.copy_(gradient), ctx.source))
        return None, None, None, None, None


class Join(_Function):
    """Return this rank's part of each tensor of an output.

    `tensors` are the output's first, followed by tensors that backward is to pass.

    Args:
        sources: rank that has computed each tensor.
        stays: whether that rank alone keeps it; else all ranks get a copy.
        differentiable: whether it has a gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        comm: Comm,
        sources: Sequence[int],
        stays: Sequence[bool],
        differentiable: Sequence[bool],
        *tensors: torch.Tensor,
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.own = [source == comm.rank for source in sources]
        ctx.others = len(tensors) - len(sources)
        made = [
            tensor.view_as(tensor) if alone else comm.broadcast(tensor.detach().clone(), source)
            for source, alone, tensor in zip(sources, stays, tensors, strict=False)
        ]
        fixed = [each for each, moves in zip(made, differentiable, strict=True) if not moves]
        ctx.mark_non_differentiable(*fixed)
        return tuple(made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        own = (gradient if mine else None for gradient, mine in zip(gradients, ctx.own, strict=True))
        return None, None, None, None, *own, *(None for _ in range(ctx.others))


class GraphEnd(_Function):
    """Scalar at the end of a micro-batch's graph on a rank, with known gradients.

    `tensors` are the output's first, each with a gradient, followed by tensors that backward is to pass.
    """

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
        ctx.gradients, ctx.others = gradients, len(tensors) - len(gradients)
        return tensors[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Any) -> Any:
        return None, *ctx.gradients, *(None for _ in range(ctx.others))
