"""A reduce-scatter for backends that have none: all ranks sum everything, and each keeps its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["reduce_scatter_by_all_reduce"]


class _Scattered:
    """A sum under way of which one part is wanted."""

    def __init__(self, summing: Any, out: torch.Tensor, part: torch.Tensor) -> None:
        self._summing = summing
        self._out = out
        self._part = part

    def wait(self) -> None:
        self._summing.wait()
        self._out.copy_(self._part)


def reduce_scatter_by_all_reduce(
    backend: Any, rank: int, out: torch.Tensor, pieces: Sequence[torch.Tensor]
) -> _Scattered:
    """Put the sum over ranks of `pieces[rank]` into `out`, when the handle has been waited for.

    Args:
        backend: a `Backend` whose `all_reduce` returns a handle.
        rank: this one.
        pieces: flat, of one dtype; as many elements for each rank on all ranks.
    """
    flat = torch.cat(list(pieces))
    part = flat.split([piece.numel() for piece in pieces])[rank]
    return _Scattered(backend.all_reduce(flat), out, part)
