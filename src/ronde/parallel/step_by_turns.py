"""Schedules of `ronde.Step`: a step whose micro-batches go back through the pipeline as they come.

What a micro-batch's loss counts is guessed, at first by its rows. When all have gone back their gradients by
the output are compared with those of the whole batch's loss. Where they differ nothing of them has counted
yet: what they count is looked for, and the step runs once more, by GPipe's schedule if nothing is found.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ronde.comm.process_group import Comm
from ronde.parallel.micro_losses import Gradients, MicroLosses, Weighing, agree, weighings
from ronde.parallel.pipeline import Pipeline
from ronde.parallel.separate_leaves import SeparateLeaves
from ronde.tensor.global_tensor import materialize
from ronde.tensor.layout import Layout
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["StepByTurns", "WentBack"]


@dataclasses.dataclass(frozen=True, slots=True)
class WentBack:
    """A batch of which all micro-batches have gone forward and back.

    Attributes:
        loss: of the batch, without a graph.
        tensors: leaves that have gradients by it.
        gradients: one for each of these.
    """

    loss: torch.Tensor
    tensors: list[torch.Tensor]
    gradients: list[torch.Tensor]


class StepByTurns:
    """Forward, loss and backward of a model's steps.

    Args:
        comm: all ranks.
        note: hears why a schedule is not carried out.
        asked: the plan's item for the schedule.
        loss_fn: of the output and the target.
        attempt: is called before each try; the result, where the try does not count.

    Attributes:
        model: the model.
        took_effect: a step has gone by turns, or it was said why none does.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        comm: Comm,
        note: Callable[[str], None],
        asked: str,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], torch.Tensor],
        attempt: Callable[[], Callable[[], object]],
    ) -> None:
        self._attempt, self._asked = attempt, asked
        self._pipeline, self._comm, self._note = pipeline, comm, note
        self.model, self._loss_fn = model, loss_fn
        self._weighing: Weighing | None = "mean"
        self.took_effect = False

    def __call__(self, args: Any, kwargs: Any, target: Any) -> torch.Tensor:
        """The loss, whose gradients have been added to those of the parameters."""
        found = self.forward(args, kwargs, target)
        if isinstance(found, WentBack):
            # All ranks come there, one whose stage is not trained too.
            anchor = found.loss.new_zeros((), requires_grad=True)
            torch.autograd.backward([*found.tensors, anchor], [*found.gradients, torch.zeros_like(anchor)])
            return found.loss
        loss = self._loss_fn(found, map_leaves(materialize, target))
        loss.backward()
        return materialize(loss).detach()

    def forward(self, args: Any, kwargs: Any, target: Any) -> Any:
        """Call the model; return `WentBack` where its micro-batches have gone back, else its output."""
        target = map_leaves(materialize, target)
        for _ in range(2):
            if self._weighing is None:
                break
            state, undo = _generators(), self._attempt()
            losses = _Losses(self._comm, self.model, self._loss_fn, target, self._weighing)
            output = self._called(losses, args, kwargs)
            if losses.leaves is None:
                return output
            gone = self._gone(losses, losses.leaves, map_leaves(materialize, output))
            if gone is not None:
                return gone
            _set_generators(state)
            undo()
        return self._called(None, args, kwargs)

    def _called(self, losses: _Losses | None, args: Any, kwargs: Any) -> Any:
        self._pipeline.losses = losses
        try:
            return self.model(*args, **kwargs)
        finally:
            self._pipeline.losses = None

    def _gone(self, losses: _Losses, leaves: SeparateLeaves, output: Any) -> WentBack | None:
        """The batch, if what has gone back is the gradient of its loss; None where nothing of that counts."""
        micro = losses.micro
        try:
            loss, expected = micro.whole(output)
        except Exception as error:  # on all ranks; what is the script's mistake it hears of by GPipe's call
            self._give_up(str(error))
            return None
        right = _agree(micro, losses.used, expected)
        if self._comm.votes([not right]) == [0]:
            self.took_effect = True
            return WentBack(loss, *leaves.gradients())
        # Of numbers that are not finite nothing can be told.
        if all(bool(each.isfinite().all()) for each in expected if each is not None):
            with _draws_again():
                self._learn(micro, output, expected)
        return None

    def _learn(self, micro: MicroLosses, output: Any, expected: Gradients) -> None:
        for weighing in weighings:
            found = weighing != self._weighing and _holds(micro, output, weighing, expected)
            if self._comm.votes([not found]) == [0]:
                self._weighing = weighing
                return
        self._give_up("it is no weighted sum of the losses of micro-batches")

    def _give_up(self, why: str) -> None:
        self._weighing, self.took_effect = None, True
        self._note(f"steps run schedule=gpipe: the loss does not come apart for {self._asked}, as {why}")


def _holds(micro: MicroLosses, output: Any, weighing: Weighing, expected: Gradients) -> bool:
    """Whether micro-batches that count by this have the gradients of the batch."""
    try:
        parts = micro.parts(output, micro.weights(weighing, output))
    except Exception:  # of the script's function, which may want the whole batch
        return False
    return _agree(micro, dict(enumerate(parts)), expected)


def _agree(micro: MicroLosses, parts: Mapping[int, Gradients | None], expected: Gradients) -> bool:
    """Whether micro-batches have the gradients of the batch; not where an output has no rows in front."""
    try:
        return all(
            part is not None and agree(part, micro.rows_of(expected, piece)) for piece, part in parts.items()
        )
    except (IndexError, RuntimeError):  # other ranks wait for this one's word
        return False


class _Losses:
    """Those of one call.

    Args:
        comm: all ranks.

    Attributes:
        micro: the batch.
        used: by micro-batch the gradients by the output that have gone back, on the rank that has it; None
            where the script's function failed.
        leaves: what has gradients of all; None where nothing has gone back.
    """

    micro: MicroLosses

    def __init__(self, comm: Comm, module: nn.Module, loss_fn: Any, target: Any, weighing: Weighing) -> None:
        self._comm = comm
        self.module = module
        self.used: dict[int, Gradients | None] = {}
        self.leaves: SeparateLeaves | None = None
        self._loss_fn, self._target = loss_fn, target
        self._weighing: Weighing = weighing
        self._weights: list[float] = []

    def agree(self, possible: bool) -> bool:
        return self._comm.votes([not possible]) == [0]

    def begin(self, cut: Layout, factor: int) -> None:
        self.micro = MicroLosses(self._loss_fn, self._target, cut)
        self._factor = factor
        self.used.clear()

    def part(self, piece: int, output: Any) -> Gradients:
        with _draws_again():
            try:
                found = self.micro.part(piece, output, self._weight(piece, output))
            except Exception:  # other ranks wait; the whole batch's loss will say what it is
                self.used[piece] = None
                return [torch.zeros_like(each) for each in leaves(output) if isinstance(each, torch.Tensor)]
        self.used[piece] = found
        made = (leaf for leaf in leaves(output) if isinstance(leaf, torch.Tensor))
        return [
            None if each is None else (each * self._factor).to(leaf.dtype)
            for each, leaf in zip(found, made, strict=True)
        ]

    def _weight(self, piece: int, output: Any) -> float:
        if not self._weights:
            cut = self.micro.cut
            blank = map_leaves(lambda leaf: _of_rows(leaf, cut.count(piece), cut.rows), output)
            self._weights = self.micro.weights(self._weighing, blank)
        return self._weights[piece]

    def end(self, leaves: SeparateLeaves) -> None:
        self.leaves = leaves


def _of_rows(leaf: Any, before: int, rows: int) -> Any:
    """A tensor of the shape that the batch's has."""
    if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0 or leaf.shape[0] != before:
        return leaf
    return leaf.detach()[:1].expand(rows, *leaf.shape[1:])


def _generators() -> tuple[torch.Tensor, torch.Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state() if _on_cuda() else None


def _set_generators(state: tuple[torch.Tensor, torch.Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])


def _on_cuda() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()


@contextmanager
def _draws_again() -> Iterator[None]:
    """What is drawn inside is drawn once more behind."""
    state = _generators()
    try:
        yield
    finally:
        _set_generators(state)
