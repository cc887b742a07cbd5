"""Backward of micro-batches that go back by turns, on one rank."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from ronde.parallel.micro_losses import Gradients
from ronde.parallel.pipeline_chunks import ChunkTurn
from ronde.parallel.pipeline_edges import Ends
from ronde.parallel.two_backwards import WeightHalf, input_half
from ronde.tensor.tree import leaves

__all__ = ["BackwardTurns", "Forwarded"]

# torch's own, because a session replaces it for scripts.
_BACKWARD: Any = torch.autograd.backward


class _Parts(Protocol):
    def part(self, piece: int, output: Any) -> Gradients:
        """The gradients of a micro-batch's loss, asked on the rank that has its output."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Forwarded:
    """A chunk of a micro-batch that has gone forward, and waits on this rank for its backward.

    Attributes:
        output: the model's; None where another rank has it, or a later turn.
        trace: by what its messages are found.
        turn: the chunk that it has gone through; None where a rank has one.
        sent: for it, and perhaps on its way.
    """

    output: Any
    trace: list[torch.Tensor]
    turn: ChunkTurn | None
    sent: list[Any]

    def end(self, losses: _Parts, piece: int) -> torch.Tensor | None:
        """Where backward of what this rank has of it begins; None where nothing has a gradient."""
        tensors, gradients = ([], []) if self.turn is None else self.turn.gradients()
        if self.output is not None:
            made = [leaf for leaf in leaves(self.output) if isinstance(leaf, torch.Tensor)]
            for tensor, gradient in zip(made, losses.part(piece, self.output), strict=True):
                if gradient is not None and tensor.requires_grad:
                    tensors.append(tensor)
                    gradients.append(gradient)
        return Ends.apply(gradients, *tensors, *self.trace) if tensors or self.trace else None


class BackwardTurns:
    """What has gone forward in a call, by micro-batch and chunk.

    Args:
        token: the leaf behind all messages.
        watched: what backward is inside of.
        halves: gradients of weights have turns of their own.
        arrived: after so many turns back a message has been received.
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
        """Have a chunk of a micro-batch wait for its turn."""
        self._waiting[piece, chunk] = found

    def go_back(self, piece: int, chunk: int) -> None:
        """Carry its turn out, but for its weights where these have turns of their own."""
        found = self._waiting.pop((piece, chunk))
        with self._watched():  # the loss, on one rank alone, can have no rank's parameters
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
        """Carry out the turn of a micro-batch's weights."""
        if piece in self._weights:
            self._weights.pop(piece)()

    def under_way(self) -> list[Any]:
        """Messages that may be on their way."""
        sent = [*self._sent, *(found.sent for found in self._waiting.values())]
        return [message for messages in sent for message in messages]
