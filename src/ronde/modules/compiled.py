"""`torch.compile` of functions: the script's own code runs eagerly on global values.

A compiled module runs on this rank's rows, as plain tensors, and stays compiled. A compiled function of the
script (a loss, a whole training step) gets global tensors, or calls models and backward; a graph that was
traced through them would hold this rank's rows and collectives as constants. `torch.cond` takes its branch as
Python would: by itself it compiles a wrapper around the branches, by which it finds the parameters that they
close over, and a branch that is not compiled would get no gradient.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from ronde.patching.patches import Patches
from ronde.patching.torch_internals import peek_interpreter_stack, skip_code
from ronde.tensor.context import Context, Region

__all__ = ["install", "pass_over", "uncompiled"]


def install(patches: Patches, context: Context, note: Callable[[str], None]) -> None:
    plain: Any = torch.compile

    def compile_(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda decorated: compile_(decorated, **options)
        compiled = plain(model, **options)
        pass_over(torch.nn.Module.__call__)
        if isinstance(model, torch.nn.Module) or not callable(model):
            return compiled
        return _eager_in_scripts(context, note, model, compiled)

    patches.set(torch, "compile", functools.wraps(plain)(compile_))
    _install_cond(patches)


def _install_cond(patches: Patches) -> None:
    plain: Any = torch.cond

    @functools.wraps(plain)
    def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
        # The compiler traces this, too, and takes the first branch.
        if torch.compiler.is_compiling() or _is_traced() or not callable(true_fn) or not callable(false_fn):
            return plain(pred, true_fn, false_fn, operands)
        return (true_fn if pred else false_fn)(*operands)

    patches.set(torch, "cond", cond)


def _is_traced() -> bool:
    """Return whether `torch.export` and the like, or `torch.func`, is tracing.

    Tensors have no values then.
    """
    return get_proxy_mode() is not None or peek_interpreter_stack() is not None


def pass_over(call: Any) -> None:
    """Let the compiler see a model's own code, not ronde's wrapper.

    The wrapper is one code object for all models, and the compiler gives up a code object after a few
    recompilations.
    """
    while getattr(call, "__module__", "").startswith("ronde."):
        skip_code(call.__code__)
        call = inspect.getclosurevars(call).nonlocals["plain"]


def _eager_in_scripts(
    context: Context, note: Callable[[str], None], function: Callable[..., Any], compiled: Callable[..., Any]
) -> Callable[..., Any]:
    name = getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]
    ours = getattr(function, "__module__", "").startswith("ronde.") or _is_inside_torch(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if context.region is Region.OBSERVED:
            return function(*args, **kwargs)
        if context.region is not Region.SCRIPT or not context.on_main_thread():
            return compiled(*args, **kwargs)
        # A model that the plan has compiled, and that runs in parts, has a note of its own.
        if not ours:
            note(
                f"{name} was given to torch.compile and runs uncompiled, because it works on values of all "
                "ranks; compile a model instead, which runs on one rank's rows: torch.compile(model) [R307]"
            )
        return function(*args, **kwargs)

    return call


def _is_inside_torch(function: Any) -> bool:
    """Return whether torch itself compiles this function, for an operator that takes functions."""
    inner = "<locals>" in getattr(function, "__qualname__", "")
    return inner and (getattr(function, "__module__", None) or "").startswith("torch.")


def uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module that the user gave to the compiler, or `module` itself."""
    if "_orig_mod" not in module._modules:
        return module
    inner: Any = module._modules["_orig_mod"]
    return inner
