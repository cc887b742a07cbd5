"""Scheduled backward of micro-batches on one rank."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from ronde.parallel.pipeline.chunks import ChunkTurn
from ronde.parallel.pipeline.edges import GraphEnd
from ronde.parallel.pipeline.micro_batch_losses import Gradients
from ronde.parallel.pipeline.split_backward import WeightHalf, input_half
from ronde.tensor.tree import leaves

__all__ = ["BackwardTurns", "Forwarded"]

# torch's own function, because a session replaces it for scripts.
_BACKWARD: Any = torch.autograd.backward


class _Parts(Protocol):
    def part(self, piece: int, output: Any) -> Gradients:
        """Return the gradients of a micro-batch's loss, on the rank that has its output."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Forwarded:
    """A chunk of a micro-batch that waits on this rank for its backward.

    Attributes:
        output: output of the model; None where another rank has it, or a later turn.
        trace: tensors from which backward reaches its messages.
        turn: the turn through its chunk; None if a rank has a single chunk.
        sent: messages sent for it, perhaps still on their way.
    """

    output: Any
    trace: list[torch.Tensor]
    turn: ChunkTurn | None
    sent: list[Any]

    def end(self, losses: _Parts, piece: int) -> torch.Tensor | None:
        """Return the root of its backward on this rank; None without gradients."""
        tensors, gradients = ([], []) if self.turn is None else self.turn.gradients()
        if self.output is not None:
            made = [leaf for leaf in leaves(self.output) if isinstance(leaf, torch.Tensor)]
            for tensor, gradient in zip(made, losses.part(piece, self.output), strict=True):
                if gradient is not None and tensor.requires_grad:
                    tensors.append(tensor)
                    gradients.append(gradient)
        return GraphEnd.apply(gradients, *tensors, *self.trace) if tensors or self.trace else None


class BackwardTurns:
    """Micro-batches and chunks of a call that wait for backward.

    Args:
        token: leaf in the graph of all messages.
        watched: context manager around backward.
        halves: whether gradients of weights have turns of their own.
        arrived: number of backward turns after which a message has been received.
    """

    def __init__(
        self,
        losses: _Parts,
        token: torch.Tensor,
        watched: Callable[[], AbstractContextManager[Any]],
        *,
        halves: bool,
        arrived: int,
    ) -> None:
        self._losses, self._token, self._watched = losses, token, watched
        self._halves, self._arrived = halves, arrived
        self._waiting: dict[tuple[int, int], Forwarded] = {}
        self._weights: dict[int, WeightHalf] = {}
        self._sent = collections.deque[list[Any]]()

    def add(self, piece: int, chunk: int, found: Forwarded) -> None:
        """Add a chunk of a micro-batch that waits for its backward."""
        self._waiting[piece, chunk] = found

    def go_back(self, piece: int, chunk: int) -> None:
        """Run backward of a chunk of a micro-batch.

        Gradients of weights are left out if they have separate turns.
        """
        found = self._waiting.pop((piece, chunk))
        with self._watched():  # the loss, on one rank alone, cannot use parameters of a stage
            end = found.end(self._losses, piece)
            if end is not None and self._halves:
                self._weights[piece] = input_half(end, self._token)
            elif end is not None:
                _BACKWARD(end, torch.zeros_like(end))
        self._sent.append(found.sent)
        if len(self._sent) > self._arrived:
            for message in self._sent.popleft():
                message.wait()

    def weights(self, piece: int) -> None:
        """Run the turn of a micro-batch's weight gradients."""
        if piece in self._weights:
            self._weights.pop(piece)()

    def under_way(self) -> list[Any]:
        """Return messages that may be on their way."""
        sent = [*self._sent, *(found.sent for found in self._waiting.values())]
        return [message for messages in sent for message in messages]
