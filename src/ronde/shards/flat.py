"""Flat views of a tensor's elements in memory order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["flat", "flat_like", "is_dense", "overlapping"]


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements fill their memory, each once, in any order of axes."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        return False
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a flat view of a dense tensor's memory.

    Writing to it changes the tensor, and its version.
    """
    bare = tensor.detach()
    if bare.is_contiguous():
        return bare.view(-1)
    return bare.as_strided((bare.numel(),), (1,), bare.storage_offset())


def flat_like(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Flatten `value` in the memory order of the dense `like`; a view if possible."""
    if value.stride() == like.stride() or (value.is_contiguous() and like.is_contiguous()):
        return flat(value)
    if like.is_contiguous():
        return value.detach().reshape(-1)
    ordered = torch.empty_strided(like.shape, like.stride(), dtype=value.dtype, device=value.device)
    return flat(ordered.copy_(value.detach()))


def overlapping(tensors: Sequence[torch.Tensor]) -> set[int]:
    """Return the ids of dense tensors that share memory with another of `tensors`."""
    found: set[int] = set()
    stretches = sorted(
        (str(tensor.device), tensor.data_ptr(), tensor.numel() * tensor.element_size(), id(tensor))
        for tensor in tensors
        if tensor.numel()
    )
    place, reach, last = "", 0, 0
    for device, begin, size, key in stretches:
        if device == place and begin < reach:
            found |= {last, key}
        if device != place or begin + size > reach:
            place, reach, last = device, begin + size, key
    return found
