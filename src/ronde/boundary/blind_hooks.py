"""Hooks before a forward that cannot look at what the module is given: they only make its weight, say.

They are a part of the module, as torch's own `weight_norm` is. That is read from the code, which never names
the arguments: so it stays true whatever the hook does at a later call.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

import torch

from ronde.boundary.members import attributes
from ronde.boundary.reach import SIMPLE, names_in
from ronde.patching.caller import is_users

__all__ = ["blind_hooks", "is_blind"]

# By these code may come by its arguments though it does not name them.
_SPYING = {"locals", "vars", "eval", "exec", "dir", "_getframe", "currentframe", "stack", "_current_frames"}


def blind_hooks(module: torch.nn.Module) -> Iterator[Any]:
    """Those of the user's on one module, without the modules inside it."""
    own = vars(module)
    for key, hook in own.get("_forward_pre_hooks", {}).items():
        if is_blind(hook, kwargs=key in own.get("_forward_pre_hooks_with_kwargs", ())):
            yield hook


def is_blind(hook: Any, *, kwargs: bool) -> bool:
    """Whether a hook of the user's before a forward cannot look at the arguments, and keeps but plain values.

    Args:
        kwargs: it is given arguments by name too.
    """
    kept: list[Any] = []
    function, own = hook, 0
    if not isinstance(hook, types.FunctionType):
        function, own = type(hook).__call__, 1
        if not isinstance(function, types.FunctionType) or isinstance(hook, torch.nn.Module):
            return False
        kept += attributes(hook).values()
    try:
        kept += [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # not assigned yet
        return False
    kept += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    named = (function.__globals__.get(name) for name in names_in(function.__code__))
    return (
        all(isinstance(each, SIMPLE) for each in kept)
        and not any(isinstance(each, torch.nn.Module) for each in named)
        and is_users(function)
        and _is_blind(function.__code__, own + 1, 2 if kwargs else 1)
    )


@functools.lru_cache(maxsize=4096)
def _is_blind(code: types.CodeType, first: int, count: int) -> bool:
    """Whether the code never names the arguments from `first` on."""
    if not _SPYING.isdisjoint(names_in(code)):
        return False
    given = set(code.co_varnames[: code.co_argcount][first : first + count])
    if code.co_flags & inspect.CO_VARARGS:
        given.add(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
    for step in dis.get_instructions(code):
        mentioned = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if step.opname != "LOAD_CONST" and any(each in given for each in mentioned if isinstance(each, str)):
            return False
    return True
