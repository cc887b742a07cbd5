"""Reduce-scatter by all-reduce, for backends that have only the latter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["end_to_end", "reduce_scatter_by_all_reduce"]


class _Scattered:
    """An all-reduce under way; only one part of its sum is kept."""

    def __init__(self, summing: Any, out: torch.Tensor, part: torch.Tensor) -> None:
        self._summing = summing
        self._out = out
        self._part = part

    def wait(self) -> None:
        self._summing.wait()
        self._out.copy_(self._part)


def reduce_scatter_by_all_reduce(
    backend: Any, rank: int, out: torch.Tensor, pieces: Sequence[Sequence[torch.Tensor]]
) -> _Scattered:
    """Put the sum over ranks of `pieces[rank]` into `out`, after `wait`.

    Args:
        backend: a `Backend` with an `all_reduce` that returns a handle.
        rank: the number of this rank.
        pieces: flat tensors of one dtype for each rank; as many elements on all ranks.
    """
    flat = end_to_end([part for piece in pieces for part in piece], out)
    part = flat.split([sum(part.numel() for part in piece) for piece in pieces])[rank]
    return _Scattered(backend.all_reduce(flat), out, part)


def end_to_end(parts: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Concatenate flat tensors; without any, return an empty one."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat(list(parts)) if parts else like.new_empty(0)
