"""`precision=bf16`, `fp16`, `tf32`: models compute in a narrow type, what is done with outputs does not.

Around the outermost call of a model stands `torch.autocast`; its results in the narrow type become float32.
So parameters, losses, gradients, the update and every value that the script reads are in float32.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from ronde.errors import UsageError
from ronde.patching.patches import Patches
from ronde.tensor.tree import map_leaves

__all__ = ["NARROW", "Precision", "allow_tf32"]

NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Sees to the calls of models; one per process.

    Args:
        name: `bf16` or `fp16`.
        note: takes a sentence for the user.
    """

    def __init__(self, name: str, note: Callable[[str], object]) -> None:
        self._asked = f"precision={name}"
        self._dtype = NARROW[name]
        self._note = note
        self._devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        self._thread = _Thread()
        # Models that the script has called with autocast switched off, when it last did so in forward.
        self._switched_off: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def install(self, patches: Patches) -> None:
        """Put it around what is called now."""
        self._count_contexts(patches)
        plain: Callable[..., Any] = torch.nn.Module.__call__
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

        patches.set(torch.nn.Module, "__call__", call)

    def _count_contexts(self, patches: Patches) -> None:
        """Know of the autocasts that are around a call, of those that are switched off too."""
        thread = self._thread
        plain_enter: Any = torch.autocast.__enter__
        plain_exit: Any = torch.autocast.__exit__

        @functools.wraps(plain_enter)
        def enter(autocast: Any) -> Any:
            thread.around[autocast.device] += 1
            return plain_enter(autocast)

        @functools.wraps(plain_exit)
        def leave(autocast: Any, *raised: Any) -> Any:
            thread.around[autocast.device] -= 1
            return plain_exit(autocast, *raised)

        patches.set(torch.autocast, "__enter__", enter)
        patches.set(torch.autocast, "__exit__", leave)

    def _applies(self, module: torch.nn.Module) -> bool:
        """A loss or a metric has no parameters, and is computed as the script does it."""
        parameter = next(module.parameters(), None)
        if parameter is None or torch.jit.is_tracing():
            return False
        for device in self._devices:
            if torch.is_autocast_enabled(device):
                self._agree_with_script(torch.get_autocast_dtype(device))
                return False
        if self._is_switched_off(module, parameter.device.type):
            self._note(
                f"{type(module).__name__} computes in {_name(parameter.dtype)}, because the script has an "
                f"autocast with enabled=False around it; switch that on or leave it out to have {self._asked}"
            )
            return False
        if parameter.dtype not in (torch.float32, self._dtype):
            self._note(
                f"{type(module).__name__} computes in {_name(parameter.dtype)}, as its parameters are: "
                f"{self._asked} is for models in float32"
            )
        return parameter.dtype is torch.float32

    def _is_switched_off(self, module: torch.nn.Module, device: str) -> bool:
        """Whether the script wants none here: no autocast is on, and one is around the call nevertheless.

        A checkpoint that computes a model again in backward has contexts of its own around it.
        """
        if torch._C._current_graph_task_id() == -1:
            if self._thread.around[device] > 0:
                self._switched_off.add(module)
            else:
                self._switched_off.discard(module)
        return module in self._switched_off

    def _agree_with_script(self, dtype: torch.dtype) -> None:
        if dtype is not self._dtype:
            raise UsageError(
                f"the script computes in {_name(dtype)} by an autocast of its own, which contradicts "
                f"{self._asked}; leave {self._asked} out of the plan, or the autocast out of the script"
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
    """What is around the calls of one thread.

    Attributes:
        inside: whether a model is being called.
        around: how many autocasts there are, by the device that they are for.
    """

    def __init__(self) -> None:
        self.inside = False
        self.around: Counter[str] = Counter()


def allow_tf32(note: Callable[[str], object]) -> None:
    """Let matrix products and convolutions on CUDA devices round what they multiply to TF32."""
    if not torch.cuda.is_available():
        note("precision=tf32 changes nothing on a CPU, which computes in float32; try precision=bf16")
        return
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
