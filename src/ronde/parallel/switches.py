"""What a script switches around a call of a model: as it was then, for what is computed again in backward.

`with torch.nn.attention.sdpa_kernel(...)`, `torch.backends.cudnn.flags(...)`, `parametrize.cached()` mostly
end before backward. Other kernels keep other tensors, and so does a weight that is made once, not twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.utils import parametrize

__all__ = ["Switches"]

_C: Any = torch._C
_cuda: Any = torch.backends.cuda
# What chooses a kernel: how it is read, and how it is set.
_KERNELS = (
    (_cuda.flash_sdp_enabled, _cuda.enable_flash_sdp),
    (_cuda.mem_efficient_sdp_enabled, _cuda.enable_mem_efficient_sdp),
    (_cuda.math_sdp_enabled, _cuda.enable_math_sdp),
    (_cuda.cudnn_sdp_enabled, _cuda.enable_cudnn_sdp),
    (_C._get_cudnn_enabled, _C._set_cudnn_enabled),
    (_C._get_mkldnn_enabled, _C._set_mkldnn_enabled),
)


class Switches:
    """As they are when this is made."""

    def __init__(self) -> None:
        self._kernels = [read() for read, _ in _KERNELS]
        self._cached = parametrize._cache_enabled
        # Weights that have been made by now: which ones, so that the others are made in there once more.
        self._weights = dict(parametrize._cache)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Inside, everything is switched as it was; behind it, as it is now."""
        now = [read() for read, _ in _KERNELS]
        cached, weights = parametrize._cache_enabled, parametrize._cache
        _switch(self._kernels)
        parametrize._cache_enabled, parametrize._cache = self._cached, dict(self._weights)
        try:
            yield
        finally:
            _switch(now)
            parametrize._cache_enabled, parametrize._cache = cached, weights


def _switch(kernels: list[bool]) -> None:
    for (read, write), wanted in zip(_KERNELS, kernels, strict=True):
        if read() != wanted:
            write(wanted)
