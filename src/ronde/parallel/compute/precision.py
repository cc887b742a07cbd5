"""`precision=bf16`, `fp16`, `tf32`: models compute in a narrow type.

`torch.autocast` surrounds the outermost call of a model; its results in the narrow type become float32. So
parameters, losses, gradients, the update and every value that the script reads are in float32.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from ronde.errors import UsageError
from ronde.patching.patches import Patches
from ronde.patching.stacks import MODULE_CALL
from ronde.tensor.tree import map_leaves

__all__ = ["NARROW", "Precision", "allow_tf32"]

NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Applies autocast to calls of models; one per process.

    Args:
        name: `bf16` or `fp16`.
        note: callback for a sentence to the user.
    """

    def __init__(self, name: str, note: Callable[[str], object]) -> None:
        self._asked = f"precision={name}"
        self._dtype = NARROW[name]
        self._note = note
        self._devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        self._thread = _Thread()

    def install(self, patches: Patches) -> None:
        """Add a layer to calls of modules."""
        patches.layer(MODULE_CALL, "precision", self._layer)

    def _layer(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        thread = self._thread

        def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if thread.inside or torch.compiler.is_compiling():
                return plain(module, *args, **kwargs)
            thread.inside = True
            try:
                if self._applies(module):
                    return self._narrow(plain, module, args, kwargs)
                return plain(module, *args, **kwargs)
            finally:
                thread.inside = False

        return call

    def _applies(self, module: torch.nn.Module) -> bool:
        """Return whether a module is a model to run under autocast.

        A loss or a metric has no parameters, and is computed as in the script.
        """
        parameter = next(module.parameters(), None)
        if parameter is None or torch.jit.is_tracing():
            return False
        for device in self._devices:
            if torch.is_autocast_enabled(device):
                self._agree_with_script(torch.get_autocast_dtype(device))
                return False
        if parameter.dtype not in (torch.float32, self._dtype):
            self._note(
                f"{type(module).__name__} computes in {_name(parameter.dtype)}, as its parameters are: "
                f"{self._asked} is for models in float32 [R315]"
            )
        return parameter.dtype is torch.float32

    def _agree_with_script(self, dtype: torch.dtype) -> None:
        if dtype is not self._dtype:
            raise UsageError(
                f"the script computes in {_name(dtype)} by an autocast of its own, which contradicts "
                f"{self._asked}; leave {self._asked} out of the plan, or the autocast out of the "
                "script [R381]"
            )

    def _narrow(self, plain: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        with torch.autocast(self._devices[0], self._dtype), torch.autocast(self._devices[-1], self._dtype):
            output = plain(module, *args, **kwargs)
        wide: dict[int, Any] = {}

        def widened(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.dtype is not self._dtype:
                return value
            if id(value) not in wide:
                wide[id(value)] = value.to(torch.float32)
            return wide[id(value)]

        return map_leaves(widened, output)


class _Thread(threading.local):
    """Flag of this thread: whether it is inside a called model."""

    inside = False


def allow_tf32(patches: Patches, note: Callable[[str], object]) -> None:
    """Allow TF32 in matrix products and convolutions on CUDA devices."""
    if not torch.cuda.is_available():
        note("precision=tf32 changes nothing on a CPU, which computes in float32; try precision=bf16 [R316]")
        return
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    def undo() -> None:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions

    patches.undo(undo)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
