"""`compile=true`: models are compiled by `torch.compile`, in place like `module.compile()`.

So names in a `state_dict` are unchanged, and pickles and deep copies contain nothing of it.
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
    """Compiles the models that are called; one per process.

    Args:
        wanted: function that returns whether the script executes, so a called module may be a model; None to
            compile every module that no other module calls.
        compiler: function that compiles a function.
    """

    def __init__(self, wanted: Callable[[], bool] | None, compiler: Callable[..., Any]) -> None:
        self._compiler = compiler
        self._thread = threading.local()
        self._wanted = wanted or (lambda: not getattr(self._thread, "inside", False))

    def install(self, patches: Patches) -> None:
        """Add a layer to calls of modules."""
        patches.layer(MODULE_CALL, "compile", self._layer)

    def _layer(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        thread = self._thread

        def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self._wanted():
                return plain(module, *args, **kwargs)
            if _is_model(module):
                # Attribute of torch's own `compile`, which is left out of copies and saved modules.
                module._compiled_call_impl = self._compiler(_own_code(module._call_impl))
            before, thread.inside = getattr(thread, "inside", False), True
            try:
                return plain(module, *args, **kwargs)
            finally:
                thread.inside = before

        return call


def _own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` wrapped in a code object of its own.

    The compiler skips code of torch, such as an `nn.Sequential`'s, unless other code calls it; and it counts
    recompilations per code object, for all models together.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    code = run.__code__.replace()
    return types.FunctionType(code, run.__globals__, run.__name__, None, run.__closure__)


def _is_model(module: torch.nn.Module) -> bool:
    """Return whether a module is a model that the script has not compiled.

    A module with a compiled part is left alone, and a loss without parameters.
    """
    if module._compiled_call_impl is not None or next(module.parameters(), None) is None:
        return False
    if isinstance(module, torch.jit.ScriptModule):
        return False
    return not any("_orig_mod" in part._modules for part in module.modules())


def require_compiler(environment: Mapping[str, str]) -> None:
    """Raise an error without a C++ compiler, before a model's first call fails."""
    if torch.cuda.is_available():
        return  # Triton brings its own
    named = environment.get("CXX")
    if not any(shutil.which(name) for name in ([named] if named else _COMPILERS)):
        raise UsageError(
            f"compile=true needs a C++ compiler, and there is no {named or ' or '.join(_COMPILERS)} on the "
            f"PATH; install one (apt install g++), or leave compile=true out of the plan [R218]"
        )
