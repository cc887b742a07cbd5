"""Modes and saved-tensor hooks of a script that see every operation of a call.

On shards they would see, and act on, one rank's rows only.
"""

from __future__ import annotations

from typing import Any

from ronde.patching.torch_internals import (
    count_dispatch_modes,
    count_function_modes,
    current_dispatch_modes,
    current_function_modes,
    saved_tensor_hooks,
)

__all__ = ["onlooker"]

_hooks: Any = saved_tensor_hooks._top_saved_tensors_default_hooks

# A default device is a function mode, and selective checkpoints keep results by a mode of dispatch.
_HARMLESS = ("ronde.", "torch.utils._device", "torch.utils.checkpoint")


def onlooker() -> str | None:
    """Describe the script's mode or hooks, or return None. Called at every model call."""
    if count_function_modes():
        for mode in current_function_modes():
            if not type(mode).__module__.startswith(("torch.", *_HARMLESS)):
                return f"{type(mode).__name__}, a torch function mode,"
    if count_dispatch_modes():
        for mode in current_dispatch_modes():
            if not type(mode).__module__.startswith(_HARMLESS):
                return f"{type(mode).__name__}, a torch dispatch mode,"
    hooks = _hooks(True)
    if hooks is not None and not str(getattr(hooks[0], "__module__", "")).startswith(("torch.", "ronde.")):
        return "saved_tensors_hooks"
    return None
