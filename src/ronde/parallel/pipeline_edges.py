"""Where a graph goes over ranks: nodes whose backward sends, or waits for, the gradient of what was sent.

Autograd's engine runs the node that was made last first, so a rank's backward meets its messages in the
reverse of the order in which its forward had them. All ranks have the order of one forward, so no two wait
for one another. Micro-batches come back last to first (Huang et al. 2019, "GPipe"), without anything that
drives them but the script's own backward.

All nodes of a call hang between two: `Tie`, made first, through which the call has its inputs and the
parameters that all ranks have, and `Join`, made last, which gives its output. So each message that forward
has sent has its gradient sent back, whatever the loss is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ronde.comm.process_group import Comm
from ronde.parallel.absent import packed
from ronde.sync.sums import Form, sums_over_ranks

__all__ = ["Ends", "Join", "Received", "Sent", "Tie"]

_Function: Any = torch.autograd.Function


class Tie(_Function):
    """A token that leads back here, and tensors that all ranks have; gradients are summed over ranks."""

    @staticmethod
    def forward(ctx: Any, comm: Comm, anchor: torch.Tensor, *tensors: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.comm = comm
        ctx.forms = [Form.of(each) for each in tensors]
        return anchor.new_zeros(()), *(each.view_as(each) for each in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Any, *gradients: torch.Tensor | None) -> Any:
        return None, None, *sums_over_ranks(ctx.comm, gradients, ctx.forms)


class Sent(_Function):
    """Sends a tensor to a rank; gives a scalar, by which the node is found in backward.

    `both` are groups of the same ranks, for tensors and for their gradients.
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
    """A tensor that a rank has sent."""

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
    """Give this rank's part of each tensor of an output.

    `tensors` are first the output's, behind them whatever backward is to come by.

    Args:
        sources: the rank that has computed each tensor.
        stays: whether it has it alone, and others nothing; else all have room for what it has.
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


class Ends(_Function):
    """Where a micro-batch's graph ends on a rank: a scalar, whose backward brings what is known already.

    `tensors` are first the output's, each with a gradient, behind them whatever backward is to come by.
    """

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
        ctx.gradients, ctx.others = gradients, len(tensors) - len(gradients)
        return tensors[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Any) -> Any:
        return None, *ctx.gradients, *(None for _ in range(ctx.others))
