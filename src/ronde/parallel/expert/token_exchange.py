"""All-to-all exchange of tokens with the ranks that have their experts.

Every rank takes part in every exchange, forward and backward, with no tokens if it has none. (Lepikhin et al.
2020, "GShard"; no token is dropped here, and none is padded.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ronde.comm.process_group import Comm
from ronde.tensor.context import Context

__all__ = ["Cannot", "TokenExchange", "announced", "linked", "true_gradient"]

_Function: Any = torch.autograd.Function


class Cannot(Exception):
    """A mixture is called in a way that cannot be spread; with the reason."""


class _AllToAll(_Function):
    """All-to-all: rows sorted by target rank become rows sorted by source rank."""

    @staticmethod
    def forward(
        ctx: Any, comm: Comm, rows: torch.Tensor, link: torch.Tensor, sent: list[int], come: list[int]
    ) -> torch.Tensor:
        ctx.comm, ctx.sent, ctx.come = comm, sent, come
        return _exchanged(comm, rows, sent, come)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, _exchanged(ctx.comm, gradient, ctx.come, ctx.sent), None, None, None


class _Announced(_Function):
    """Identity; its backward is announced on all ranks before it continues."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, link: torch.Tensor, announce: Callable[[], object]
    ) -> torch.Tensor:
        ctx.announce = announce
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.announce()
        return gradient, None, None


class _Linked(_Function):
    """Identity; backward also reaches the nodes of other tensors, without a gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        ctx.count = len(others)
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, *(None for _ in range(ctx.count))


class _TrueGradient(_Function):
    """Identity on a block of parameters, with one device's gradient in backward."""

    @staticmethod
    def forward(ctx: Any, context: Context, leaf: torch.Tensor, replicas: int) -> torch.Tensor:
        ctx.context, ctx.replicas = context, replicas
        return leaf.view_as(leaf)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, gradient * (ctx.replicas / ctx.context.gradient_factor), None


def true_gradient(context: Context, leaf: torch.Tensor, replicas: int = 1) -> torch.Tensor:
    """Identity that divides the gradient by W, the factor of gradients of rows.

    Args:
        replicas: number of replicas of the leaf, each with its own tokens; the mean of their gradients is one
            device's.
    """
    if not leaf.requires_grad or not torch.is_grad_enabled():
        return leaf
    return _TrueGradient.apply(context, leaf, replicas)


def linked(tensor: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """Return the tensor, from which backward also reaches the nodes of others."""
    return _Linked.apply(tensor, *others) if torch.is_grad_enabled() else tensor


def announced(tensor: torch.Tensor, link: torch.Tensor, announce: Callable[[], object]) -> torch.Tensor:
    """Return the tensor; backward calls `announce`, then continues to both arguments."""
    return _Announced.apply(tensor, link, announce) if torch.is_grad_enabled() else tensor


class TokenExchange:
    """Exchange of one call's tokens. A collective.

    Args:
        counts: number of this rank's tokens for each expert; experts lie on ranks in their order, equally
            many on each.
        problem: reason why this rank cannot continue, or "".
        everybody: the ranks that succeed or fail together; `comm` by default.

    Attributes:
        comm: the ranks over which experts are spread.
        here: number of tokens of each rank for each of this rank's experts.
        asked: whether any rank has called the expert, with tokens or without, for each expert of this rank.

    Raises:
        Cannot: some rank has a problem. Raised on all ranks.
    """

    def __init__(
        self,
        comm: Comm,
        counts: Sequence[int],
        called: Sequence[bool],
        problem: str = "",
        everybody: Comm | None = None,
    ) -> None:
        self.comm = comm
        each = len(counts) // comm.world_size
        told = torch.tensor([counts, called, [bool(problem)] * len(counts)], device=comm.control_device)
        known = comm.all_gather(told)
        somewhere = known[:, 2].any() if everybody is None else everybody.votes([bool(problem)]) != [0]
        if somewhere:
            raise Cannot(next(filter(None, (everybody or comm).all_gather_object(problem))))
        own = slice(comm.rank * each, (comm.rank + 1) * each)
        self.here: list[list[int]] = known[:, 0, own].tolist()
        self.asked: list[bool] = known[:, 1, own].bool().any(0).tolist()
        self._sent = [sum(counts[rank * each : (rank + 1) * each]) for rank in range(comm.world_size)]
        self._come = [sum(row) for row in self.here]

    def there(self, rows: torch.Tensor) -> torch.Tensor:
        """Send rows, sorted by expert, to the ranks that hold the experts.

        Returns the rows of all ranks for this rank's experts.
        """
        anchor = torch.zeros((), requires_grad=torch.is_grad_enabled())
        return _AllToAll.apply(self.comm, rows, anchor, self._sent, self._come)

    def back(self, rows: torch.Tensor, link: torch.Tensor) -> torch.Tensor:
        """Send rows back; backward passes through the node of `link`."""
        return _AllToAll.apply(self.comm, rows, link, self._come, self._sent)


def _exchanged(comm: Comm, rows: torch.Tensor, sent: list[int], come: list[int]) -> torch.Tensor:
    pieces = [piece.contiguous() for piece in rows.detach().split(sent)]
    return torch.cat(comm.all_to_all(pieces, come))
