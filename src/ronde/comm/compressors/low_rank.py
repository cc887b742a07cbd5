"""powersgd: a matrix as the product of two thin ones, by one step of power iteration."""

from __future__ import annotations

import torch

__all__ = ["as_matrix", "first_factor", "orthonormal", "pays"]


def as_matrix(values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Elements of a tensor of this shape, laid out without gaps, as a matrix [first axis, all others]."""
    return values.view(shape[0], -1)


def pays(shape: torch.Size, rank: int) -> bool:
    """Whether two factors are at most half the elements of a tensor of this shape."""
    if len(shape) < 2 or not shape.numel():
        return False
    rows, columns = shape[0], shape.numel() // shape[0]
    return 2 * rank * (rows + columns) <= rows * columns


def first_factor(shape: torch.Size, rank: int, dtype: torch.dtype, key: int) -> torch.Tensor:
    """Where the iteration begins: [columns, rank], drawn alike on all ranks."""
    generator = torch.Generator().manual_seed(key)
    return torch.randn(shape.numel() // shape[0], rank, generator=generator, dtype=torch.float64).to(dtype)


def orthonormal(factor: torch.Tensor) -> torch.Tensor:
    """An orthonormal basis [n, r] of the columns of `factor` [n, r], float32 or float64."""
    return torch.linalg.qr(factor).Q
