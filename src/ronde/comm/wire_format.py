"""Form in which tensors travel, where a backend cannot sum them as they are."""

from __future__ import annotations

import torch

__all__ = ["WIDER", "copy_back", "divide", "travels_as_it_is"]

# Dtypes that Gloo does not reduce, and the wider ones in which they travel.
WIDER = {
    torch.bool: torch.uint8,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
}


def travels_as_it_is(tensor: torch.Tensor) -> bool:
    """Return whether the backend can sum this memory itself."""
    return tensor.is_contiguous() and tensor.dtype not in WIDER and not tensor.is_complex()


@torch.no_grad()
def copy_back(tensor: torch.Tensor, received: torch.Tensor) -> None:
    """Copy the received elements into a tensor of another dtype or memory order."""
    tensor.copy_(torch.view_as_complex(received) if tensor.is_complex() else received)


@torch.no_grad()
def divide(flat: torch.Tensor, ranks: int) -> None:
    """Turn a sum over ranks into their mean, in place."""
    flat.div_(ranks)
