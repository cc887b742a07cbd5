"""Gradient scale in half precision, equal to one device's.

Of a shard, the local gradient is W times the true one (see `edges`). A `GradScaler` keeps gradients close to
the largest number that float16 holds: with W times the gradient, ranks would overflow earlier, and skip steps
that one device takes. In a script with a scaler every backward therefore begins with 1/W, and the reducer
multiplies what it has averaged by W. Values that the script itself computes of whole ones then have gradients
divided by W; where it could look at these, with a hook or a backward of its own, nothing is divided.

So each row has the gradient that it has on one device. The reducer sums over all rows, and must know which
sums one device would have computed in float16.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ronde.patching.modes_first import modes_first
from ronde.patching.patches import Patches
from ronde.tensor.context import Context, Region

__all__ = ["divided", "install", "multiplied", "multiply"]


def install(patches: Patches, context: Context) -> None:
    plain_init: Any = torch.amp.GradScaler.__init__
    plain_retain: Any = torch.Tensor.retain_grad

    @functools.wraps(plain_init)
    def init(scaler: Any, *args: Any, **kwargs: Any) -> None:
        plain_init(scaler, *args, **kwargs)
        context.loss_is_scaled = context.loss_is_scaled or scaler.is_enabled()

    def retain_grad(tensor: torch.Tensor) -> None:
        context.gradients_watched = context.gradients_watched or context.region is Region.SCRIPT
        plain_retain(tensor)

    patches.set(torch.amp.GradScaler, "__init__", init)
    patches.set(torch.Tensor, "retain_grad", modes_first(retain_grad))


def divided(tensors: Any, gradients: Any, divisor: float) -> Any:
    """Return the initial gradients of `tensors`, or ones, divided by `divisor`."""
    roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    given = [gradients] if isinstance(gradients, torch.Tensor) else list(gradients or [None] * len(roots))

    def seed(root: Any, gradient: Any) -> Any:
        if gradient is not None:
            return gradient / divisor
        if root.numel() != 1 or not root.requires_grad:
            return None  # torch raises its own error
        return torch.full_like(root, 1 / divisor, requires_grad=False)

    return [seed(root, gradient) for root, gradient in zip(roots, given, strict=True)]


@contextmanager
def multiplied(leaves: Sequence[torch.Tensor], factor: int) -> Iterator[None]:
    """Multiply gradients of leaves that the reducer does not average, after a divided backward.

    Backward inside the `with` block begins with 1/`factor`. Gradients accumulated before are divided on
    entry.
    """
    multiply(leaves, 1 / factor)  # accumulated gradients are brought to the scale of new ones
    try:
        yield
    finally:
        multiply(leaves, factor)


@torch.no_grad()
def multiply(leaves: Iterable[torch.Tensor], factor: float) -> None:
    """Multiply existing gradients in place."""
    for leaf in leaves:
        if leaf.grad is not None:
            leaf.grad.mul_(factor)
