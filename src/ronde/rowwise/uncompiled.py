"""Compiled modules, which run as they were written where each operation is looked at."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

__all__ = ["uncompiled"]


def uncompiled(module: torch.nn.Module) -> AbstractContextManager[Any]:
    """Inside, what of a module was compiled runs as it was written: a mode sees nothing of a graph."""
    if not any(map(_is_compiled, module.modules())):
        return nullcontext()
    stance: Any = torch.compiler.set_stance("force_eager")
    return stance


def _is_compiled(module: torch.nn.Module) -> bool:
    if getattr(module, "_compiled_call_impl", None) is not None:
        return True
    return type(module).__module__ == "torch._dynamo.eval_frame" and "_orig_mod" in module._modules
