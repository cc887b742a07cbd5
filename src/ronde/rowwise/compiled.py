"""Compiled modules run eagerly while observed, as a dispatch mode cannot see into graphs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

__all__ = ["aside", "is_compiled"]


def aside(module: torch.nn.Module) -> AbstractContextManager[object]:
    """Disable compilation of a module's parts inside the `with` block.

    Without it the compiler would skip these parts, but permanently: it never compiles code again that it met
    inside a dispatch mode.
    """
    if not any(map(is_compiled, module.modules())):
        return nullcontext()
    stance: Any = torch.compiler.set_stance("force_eager")
    return stance


def is_compiled(module: torch.nn.Module) -> bool:
    """Return whether this module itself was given to torch.compile."""
    if getattr(module, "_compiled_call_impl", None) is not None:
        return True
    return type(module).__module__ == "torch._dynamo.eval_frame" and "_orig_mod" in module._modules
