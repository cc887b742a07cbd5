"""Schedules of `ronde.Step`: micro-batches run backward through the pipeline early.

The weight of a micro-batch's loss is guessed, at first by its rows. When all have run backward, their
gradients by the output are compared with those of the whole batch's loss. Where they differ no parameter has
received a gradient yet: other weights are tried, and the step runs once more, by GPipe's schedule if none
fits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ronde.comm.process_group import Comm
from ronde.parallel.pipeline.micro_batch_losses import Gradients, MicroLosses, Weighing, agree, weighings
from ronde.parallel.pipeline.pipeline import Pipeline
from ronde.parallel.separate_leaves import SeparateLeaves
from ronde.rng.device_states import device_states, set_device_states
from ronde.tensor.global_tensor import materialize
from ronde.tensor.layout import Layout
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["StepByTurns", "WentBack"]


@dataclasses.dataclass(frozen=True, slots=True)
class WentBack:
    """A batch with forward and backward of all micro-batches done.

    Attributes:
        loss: loss of the batch, without a graph.
        tensors: leaves that have gradients by it.
        gradients: gradients of these leaves.
    """

    loss: torch.Tensor
    tensors: list[torch.Tensor]
    gradients: list[torch.Tensor]


class StepByTurns:
    """Runs forward, loss and backward of a model's steps.

    Args:
        comm: all ranks.
        note: callback for the reason why a schedule is not used.
        asked: plan item for the schedule.
        loss_fn: function of the output and the target.
        attempt: callback before each try; it returns a function that undoes a try that does not count.

    Attributes:
        model: the model.
        took_effect: whether a step used the schedule, or a note told why none does.
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
        """Return the loss, after adding its gradients to the parameters'."""
        found = self.forward(args, kwargs, target)
        if isinstance(found, WentBack):
            # All ranks take part, also one with a stage that is not trained.
            anchor = found.loss.new_zeros((), requires_grad=True)
            torch.autograd.backward([*found.tensors, anchor], [*found.gradients, torch.zeros_like(anchor)])
            return found.loss
        loss = self._loss_fn(found, map_leaves(materialize, target))
        loss.backward()
        return materialize(loss).detach()

    def forward(self, args: Any, kwargs: Any, target: Any) -> Any:
        """Call the model; return `WentBack` after scheduled backward, else its output."""
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
        """Return the batch if its gradients are right; None if they must be discarded."""
        micro = losses.micro
        try:
            loss, expected = micro.whole(output)
        except Exception as error:  # raised on all ranks; GPipe's call then raises the script's error
            self._give_up(str(error))
            return None
        right = _agree(micro, losses.used, expected)
        if self._comm.votes([not right]) == [0]:
            self.took_effect = True
            return WentBack(loss, *leaves.gradients())
        # Non-finite numbers allow no comparison.
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
        self._give_up("it is not a weighted sum of the losses of micro-batches")

    def _give_up(self, why: str) -> None:
        self._weighing, self.took_effect = None, True
        self._note(
            f"steps run schedule=gpipe: {self._asked} needs a loss that is a sum over micro-batches, but "
            f"{why} [R223]"
        )


def _holds(micro: MicroLosses, output: Any, weighing: Weighing, expected: Gradients) -> bool:
    """Return whether weighted micro-batches have the gradients of the batch."""
    try:
        parts = micro.parts(output, micro.weights(weighing, output))
    except Exception:  # raised by the script's function, which may need the whole batch
        return False
    return _agree(micro, dict(enumerate(parts)), expected)


def _agree(micro: MicroLosses, parts: Mapping[int, Gradients | None], expected: Gradients) -> bool:
    """Return whether micro-batches have the gradients of the batch.

    False where an output has no rows as its first dimension.
    """
    try:
        return all(
            part is not None and agree(part, micro.rows_of(expected, piece)) for piece, part in parts.items()
        )
    except (IndexError, RuntimeError):  # other ranks wait for this one's vote
        return False


class _Losses:
    """Losses of one call.

    Args:
        comm: all ranks.

    Attributes:
        micro: losses of the batch's micro-batches.
        used: gradients by the output that were used, by micro-batch, on the rank that has them; None where
            the script's function failed.
        leaves: leaves with gradients of all micro-batches; None where no backward ran.
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
            except Exception:  # other ranks wait; the whole batch's loss will raise the error
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
    """Return a tensor of the shape that the batch's has."""
    if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0 or leaf.shape[0] != before:
        return leaf
    return leaf.detach()[:1].expand(rows, *leaf.shape[1:])


def _generators() -> tuple[torch.Tensor, list[torch.Tensor]]:
    return torch.get_rng_state(), device_states()


def _set_generators(state: tuple[torch.Tensor, list[torch.Tensor]]) -> None:
    torch.set_rng_state(state[0])
    set_device_states(state[1])


@contextmanager
def _draws_again() -> Iterator[None]:
    """Restore generators at the end, so draws inside are repeated after."""
    state = _generators()
    try:
        yield
    finally:
        _set_generators(state)
