"""Loss of a batch as a weighted sum of the losses of its micro-batches.

A schedule that begins backward before all outputs exist needs the gradient of a part of the output,
independent of the others. A sum or a mean over rows has it, and a mean with weights in the targets (ignored
padding, weights of classes). Nothing is assumed of a loss function: the weights of its parts are found by
trying, and each batch's gradients are compared with those of the whole loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from ronde.patching.torch_internals import DisableTorchFunction
from ronde.tensor.layout import Layout
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["Gradients", "MicroLosses", "Weighing", "agree", "weighings"]

Gradients = list["torch.Tensor | None"]
"""Gradients of an output's tensors, in order; None for a tensor without one."""

Weighing = Literal["mean", "sum", "targets"]
"""Weight of a part: its share of the rows, one, or a weight found in its targets."""

weighings: tuple[Weighing, ...] = ("mean", "sum", "targets")

# Multiple of the smallest relative difference of the output's dtype.
_ROUNDING = 64


@dataclasses.dataclass(frozen=True, slots=True)
class MicroLosses:
    """Loss function on a batch that is cut along the first dimension.

    Attributes:
        loss_fn: function from an output and the target to a scalar.
        target: nested value; tensors with as many entries as the batch has rows are cut, and nothing else.
        cut: cut of the batch into micro-batches.
    """

    loss_fn: Callable[[Any, Any], torch.Tensor]
    target: Any
    cut: Layout

    def whole(self, output: Any) -> tuple[torch.Tensor, Gradients]:
        """Return the loss of the batch, and its gradients by the output.

        Raises:
            ValueError: the loss depends on parameters too, or is not a scalar tensor.
        """
        return _differentiated(self.loss_fn, output, self.target)

    def part(self, piece: int, output: Any, weight: float) -> Gradients:
        """Return the gradients of a micro-batch's loss by its output, times its weight."""
        if weight == 0:  # perhaps all of its targets are ignored, and their mean is undefined
            return [torch.zeros_like(each) for each in _tensors(output)]
        _, gradients = _differentiated(self.loss_fn, output, self._piece(self.target, piece))
        return [None if each is None else each * weight for each in gradients]

    def rows_of(self, gradients: Gradients, piece: int) -> Gradients:
        """Cut a micro-batch's gradients out of the batch's."""
        return [None if each is None else self.cut.take(each, piece) for each in gradients]

    def parts(self, output: Any, weights: Sequence[float]) -> list[Gradients]:
        """Return each micro-batch's gradients, from the output of the batch."""
        cut = [self._piece(output, piece) for piece in range(self.cut.world_size)]
        return [
            self.part(piece, each, weight)
            for piece, (each, weight) in enumerate(zip(cut, weights, strict=True))
        ]

    def weights(self, by: Weighing, output: Any) -> list[float]:
        """Return the weight of each micro-batch's loss.

        Args:
            output: output of the batch; only its shape matters for weights by targets.
        """
        counts = [self.cut.count(piece) for piece in range(self.cut.world_size)]
        if by == "mean":
            return [count / self.cut.rows for count in counts]
        if by == "sum":
            return [1.0 for _ in counts]
        blank = map_leaves(
            lambda each: torch.zeros_like(each) if _is_cut(each, self.cut.rows) else each, output
        )
        _, whole = self.whole(blank)
        parts = self.parts(blank, [1.0 for _ in counts])
        return [_ratio(self.rows_of(whole, piece), parts[piece]) for piece in range(len(counts))]

    def _piece(self, value: Any, piece: int) -> Any:
        rows = self.cut.rows
        return map_leaves(lambda each: self.cut.take(each, piece) if _is_cut(each, rows) else each, value)


def agree(found: Gradients, expected: Gradients) -> bool:
    """Return whether gradients are equal but for rounding."""
    for mine, right in zip(found, expected, strict=True):
        if mine is None or right is None:
            if (mine is None) is not (right is None):
                return False
            continue
        if torch.finfo(right.dtype).eps > 1e-6:  # half precision rounds by more than weights may differ
            return False
        bound = _ROUNDING * torch.finfo(right.dtype).eps * float(right.abs().max() if right.numel() else 0)
        if not bool(((mine - right).abs() <= bound).all()):
            return False
    return True


def _differentiated(
    loss_fn: Callable[[Any, Any], torch.Tensor], output: Any, target: Any
) -> tuple[torch.Tensor, Gradients]:
    given: list[torch.Tensor] = []

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        made = _wide(value.detach())
        if made.is_floating_point() or made.is_complex():
            made.requires_grad_()
        given.append(made)
        return made

    with torch.enable_grad():
        loss = loss_fn(map_leaves(leaf, output), target)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ValueError("its value is not a tensor of one element [R223]")
    asked = [each for each in given if each.requires_grad]
    _refuse_others(loss, asked)
    with DisableTorchFunction():  # a mode would receive the session's function in place of this one
        found = iter(_GRAD(loss, asked, allow_unused=True))
    return loss.detach(), [next(found) if each.requires_grad else None for each in given]


def _wide(value: torch.Tensor) -> torch.Tensor:
    """Convert an output of `precision=bf16` to float32.

    Weights may differ by less than bfloat16 rounds.
    """
    narrow = value.dtype is torch.bfloat16 and torch.is_autocast_enabled(value.device.type)
    return value.to(torch.float32) if narrow else value


# torch's own function, because a session replaces it for scripts.
_GRAD: Any = torch.autograd.grad


def _refuse_others(loss: torch.Tensor, asked: Sequence[torch.Tensor]) -> None:
    """Raise an error if the loss has gradients besides the output's."""
    known = {id(each) for each in asked}
    seen: set[Any] = set()
    ahead = [loss.grad_fn]
    while ahead:
        node: Any = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in known:
            raise ValueError("it depends on more than the model's output [R223]")
        ahead += [each for each, _ in node.next_functions]


def _tensors(output: Any) -> list[torch.Tensor]:
    return [each for each in leaves(output) if isinstance(each, torch.Tensor)]


def _is_cut(value: Any, rows: int) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == rows


def _ratio(whole: Gradients, part: Gradients) -> float:
    """Return the factor between the two gradients, 0 if they are zero."""
    both = [(a, b) for a, b in zip(whole, part, strict=True) if a is not None and b is not None]
    length = sum(float(b.double().square().sum()) for _, b in both)
    if not 0 < length < float("inf"):  # zero, or a mean over nothing
        return 0.0
    return sum(float((a.double() * b.double()).sum()) for a, b in both) / length
