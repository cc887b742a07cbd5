"""`compile=true`: models go through `torch.compile`, in place, as `module.compile()` does it.

So names in a `state_dict` stay what they are, and pickles and deep copies have nothing of it.
"""

from __future__ import annotations

import shutil
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ronde.errors import UsageError
from ronde.patching.patches import Patches
from ronde.patching.stacks import MODULE_CALL

__all__ = ["Compile", "require_compiler"]

_COMPILERS = ("g++", "clang++", "c++")


class Compile:
    """Sees to the models that are called; one per process.

    Args:
        wanted: whether execution is in the script, so that what is called may be a model; None: what
            no other module calls is.
        compiler: compiles a function.
    """

    def __init__(self, wanted: Callable[[], bool] | None, compiler: Callable[..., Any]) -> None:
        self._compiler = compiler
        self._thread = threading.local()
        self._wanted = wanted or (lambda: not getattr(self._thread, "inside", False))

    def install(self, patches: Patches) -> None:
        """Join the layers around calls of modules."""
        patches.layer(MODULE_CALL, "compile", self._layer)

    def _layer(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        thread = self._thread

        def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self._wanted():
                return plain(module, *args, **kwargs)
            if _is_model(module):
                # What torch's own `compile` sets, and leaves out of what is copied or saved.
                module._compiled_call_impl = self._compiler(_own_code(module._call_impl))
            before, thread.inside = getattr(thread, "inside", False), True
            try:
                return plain(module, *args, **kwargs)
            finally:
                thread.inside = before

        return call


def _own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, called by code of its own.

    The compiler passes over code of torch's, an `nn.Sequential`'s, unless other code calls it; and it counts
    how often it has compiled a piece of code, whichever model that was for.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    code = run.__code__.replace()
    return types.FunctionType(code, run.__globals__, run.__name__, None, run.__closure__)


def _is_model(module: torch.nn.Module) -> bool:
    """Not a loss, nor what the script has compiled itself, in whole or in part."""
    if module._compiled_call_impl is not None or next(module.parameters(), None) is None:
        return False
    if isinstance(module, torch.jit.ScriptModule):
        return False
    return not any("_orig_mod" in part._modules for part in module.modules())


def require_compiler(environment: Mapping[str, str]) -> None:
    """Refuse what could only fail, in many words, at the first call of a model."""
    if torch.cuda.is_available():
        return  # Triton brings its own
    named = environment.get("CXX")
    if not any(shutil.which(name) for name in ([named] if named else _COMPILERS)):
        raise UsageError(
            f"compile=true needs a C++ compiler, and there is no {named or ' or '.join(_COMPILERS)} on the "
            f"PATH; install one (apt install g++), or leave compile=true out of the plan"
        )
