"""powersgd: a matrix as product of two thin ones, by one power iteration."""

from __future__ import annotations

import torch

__all__ = ["as_matrix", "first_factor", "multiply", "orthonormal", "pays"]

# Up to this number of terms a sum is faster term by term on the CPU, as BLAS is optimized for more.
_FEW = 8


def as_matrix(values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """View the elements of a contiguous tensor as a matrix [first axis, all others]."""
    return values.view(shape[0], -1)


def pays(shape: torch.Size, rank: int) -> bool:
    """Return whether two factors have at most half of a tensor's elements."""
    if len(shape) < 2 or not shape.numel():
        return False
    rows, columns = shape[0], shape.numel() // shape[0]
    return 2 * rank * (rows + columns) <= rows * columns


def first_factor(shape: torch.Size, rank: int, dtype: torch.dtype, key: int) -> torch.Tensor:
    """Draw the first factor of the iteration, [rank, columns], alike on all ranks."""
    generator = torch.Generator().manual_seed(key)
    drawn = torch.randn(shape.numel() // shape[0], rank, generator=generator, dtype=torch.float64)
    return drawn.T.to(dtype).contiguous()


def orthonormal(factor: torch.Tensor) -> torch.Tensor:
    """Return an orthonormal basis [r, n] of the rows of `factor` [r, n].

    It is float32 or float64, with r <= n.
    """
    return torch.linalg.qr(factor.T).Q.T.contiguous()


def multiply(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """Put the sum over r of left[r] right[r]^T into `out`.

    Shapes: `left` [r, n], `right` [r, m], `out` [n, m].
    """
    if len(left) > _FEW or out.is_cuda:
        torch.matmul(left.T, right, out=out)
        return
    torch.mul(left[0].unsqueeze(1), right[0], out=out)
    for one, other in zip(left[1:], right[1:], strict=True):
        out.addcmul_(one.unsqueeze(1), other)
