"""Support for TorchScript.

`torch.jit.script` compiles torch's own functions, not their replacements for global tensors; and a frozen
module has no modes.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from ronde.patching.patches import Patches
from ronde.patching.torch_internals import VF, ONNXTracedModule

__all__ = ["install", "is_about_to_trace", "is_training", "one_frame_more"]

# Where code that is compiled finds functions by name.
_NAMESPACES = (torch, torch.nn.functional, VF)
_PLACE_OF_FRAMES = 3  # position of `_frames_up` among the arguments of torch.jit.script


def install(patches: Patches) -> None:
    plain: Any = torch.jit.script

    @functools.wraps(plain)
    def script(*args: Any, **kwargs: Any) -> Any:
        with patches.lifted(_NAMESPACES):
            return plain(*args, **one_frame_more(args, kwargs))

    patches.set(torch.jit, "script", script)
    # Functions that `script_if_tracing` calls.
    patches.set(sys.modules["torch.jit._script"], "script", script)


def one_frame_more(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Adjust arguments of `torch.jit.script` for a wrapper around it.

    It looks up names in the frame of its caller.
    """
    if len(args) >= _PLACE_OF_FRAMES:
        return kwargs
    return {**kwargs, "_frames_up": kwargs.get("_frames_up", 0) + 1}


def is_about_to_trace(module: torch.nn.Module) -> bool:
    """Return whether a module wraps a model to trace it, for example for ONNX.

    The sizes of the batch go into the graph.
    """
    return isinstance(module, ONNXTracedModule)


def is_training(module: torch.nn.Module) -> bool:
    """Return whether a module is in training mode; False for the result of `torch.jit.freeze`."""
    return getattr(module, "training", False)
