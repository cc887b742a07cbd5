"""What TorchScript needs: `torch.jit.script` compiles torch's own functions, not what stands in their places
for global tensors; and a module that is frozen has no modes."""

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
_PLACE_OF_FRAMES = 3  # of `_frames_up` among the arguments of torch.jit.script


def install(patches: Patches) -> None:
    plain: Any = torch.jit.script

    @functools.wraps(plain)
    def script(*args: Any, **kwargs: Any) -> Any:
        with patches.lifted(_NAMESPACES):
            return plain(*args, **one_frame_more(args, kwargs))

    patches.set(torch.jit, "script", script)
    # What `script_if_tracing` calls.
    patches.set(sys.modules["torch.jit._script"], "script", script)


def one_frame_more(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments for `torch.jit.script` from a function around it: it looks up names where it is called."""
    if len(args) >= _PLACE_OF_FRAMES:
        return kwargs
    return {**kwargs, "_frames_up": kwargs.get("_frames_up", 0) + 1}


def is_about_to_trace(module: torch.nn.Module) -> bool:
    """Whether it wraps a model to trace it, for ONNX say: the sizes of the batch go into the graph."""
    return isinstance(module, ONNXTracedModule)


def is_training(module: torch.nn.Module) -> bool:
    """Whether a module is in training mode, which one that `torch.jit.freeze` made is not."""
    return getattr(module, "training", False)
