"""`hvd.Compression`: encodings of gradients. A user's class with these two methods works too."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Compression"]


class NoneCompressor:
    """The identity encoding."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class FP16Compressor:
    """Encoding of floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        return tensor.to(ctx)


class Compression:
    """The available encodings."""

    none = NoneCompressor
    fp16 = FP16Compressor
