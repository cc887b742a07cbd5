"""Adasum: adds two gradients where they are orthogonal, averages them where they agree."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["adasum"]


def adasum(first: torch.Tensor, second: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Combine two flat tensors as Adasum does, tensor by tensor.

    The result is a (1 - a.b / 2|a|^2) + b (1 - a.b / 2|b|^2). `first` and `second` are flat [n], and hold
    tensors of `sizes` elements.

    Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021; Horovod's
    `op=Adasum`. Products are summed in float64.
    """
    out = torch.empty_like(first)
    pieces = zip(first.split(list(sizes)), second.split(list(sizes)), out.split(list(sizes)), strict=True)
    for a, b, into in pieces:
        wide_a, wide_b = a.double(), b.double()
        product = torch.dot(wide_a, wide_b).item()
        of_a, of_b = torch.dot(wide_a, wide_a).item(), torch.dot(wide_b, wide_b).item()
        torch.mul(a, 1 - product / (2 * of_a) if of_a else 1.0, out=into)
        into.add_(b, alpha=1 - product / (2 * of_b) if of_b else 1.0)
    return out
