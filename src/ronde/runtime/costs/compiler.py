"""The script's own use of torch's compiler, noted and not carried out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ronde.patching.patches import Patches

__all__ = ["Compiler"]

_CAPTURING = ("reduce-overhead", "max-autotune")


class Compiler:
    """Stands for `torch.compile` while operations are counted, which it would hide.

    Attributes:
        kernels: the way in which operations of what the script compiles start: `fused`, or `captured` where
            its mode captures CUDA graphs; `eager` where it compiles nothing.
    """

    def __init__(self) -> None:
        self.kernels = "eager"

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note compilers inside the block."""

        def compiled(model: Any = None, **options: Any) -> Any:
            if model is None:  # a decorator with arguments
                return lambda function: compiled(function, **options)
            self._note(options)
            return model

        def in_place(module: torch.nn.Module, *_: Any, **options: Any) -> None:
            self._note(options)

        patches = Patches()
        patches.set(torch, "compile", compiled)
        patches.set(torch.nn.Module, "compile", in_place)
        try:
            yield
        finally:
            patches.restore()

    def _note(self, options: Mapping[str, Any]) -> None:
        if options.get("disable"):
            return
        graphs = (options.get("options") or {}).get("triton.cudagraphs", False)
        captures = graphs or options.get("mode") in _CAPTURING
        self.kernels = "captured" if captures or self.kernels == "captured" else "fused"
