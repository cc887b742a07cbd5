"""Compiled modules run as they were written where operations are looked at: a mode sees none of a graph."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

__all__ = ["aside", "is_compiled"]


def aside(module: torch.nn.Module) -> AbstractContextManager[object]:
    """Inside, what of a module was compiled runs as it was written.

    Where draws are watched the compiler would step aside by itself, but for ever: it passes over code that it
    has met once inside a dispatch mode.
    """
    if not any(map(is_compiled, module.modules())):
        return nullcontext()
    stance: Any = torch.compiler.set_stance("force_eager")
    return stance


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether this module itself was given to torch.compile."""
    if getattr(module, "_compiled_call_impl", None) is not None:
        return True
    return type(module).__module__ == "torch._dynamo.eval_frame" and "_orig_mod" in module._modules
