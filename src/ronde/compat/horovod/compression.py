"""`hvd.Compression`: how gradients travel. A class of one's own with these two methods does as well."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Compression"]


class NoneCompressor:
    """As they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class FP16Compressor:
    """As float16, where they are of another floating type."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        return tensor.to(ctx)


class Compression:
    """The choices."""

    none = NoneCompressor
    fp16 = FP16Compressor
