"""What a script has put around a call to see every operation of it: a mode, or hooks on saved tensors.

On shards it would see one rank's rows, and act on them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

__all__ = ["onlooker"]

_functions: Any = torch._C._len_torch_function_stack
_dispatches: Any = torch._C._len_torch_dispatch_stack
_hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks  # pyright: ignore[reportAttributeAccessIssue]

# A default device is a function mode, and selective checkpoints keep results by a mode of dispatch.
_HARMLESS = ("ronde.", "torch.utils._device", "torch.utils.checkpoint")


def onlooker() -> str | None:
    """What it is, in words; None where there is none. Called at every call of a model."""
    if _functions():
        for mode in _get_current_function_mode_stack():
            if not type(mode).__module__.startswith(("torch.", *_HARMLESS)):
                return f"{type(mode).__name__}, a torch function mode,"
    if _dispatches():
        for mode in _get_current_dispatch_mode_stack():
            if not type(mode).__module__.startswith(_HARMLESS):
                return f"{type(mode).__name__}, a torch dispatch mode,"
    hooks = _hooks(True)
    if hooks is not None and not str(getattr(hooks[0], "__module__", "")).startswith(("torch.", "ronde.")):
        return "saved_tensors_hooks"
    return None
