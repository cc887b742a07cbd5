"""Hooks before a forward that cannot look at what the module is given: they only make its weight, say.

They are a part of the module, as torch's own `weight_norm` is. That is read from the code, which never names
the arguments: so it stays true whatever the hook does at a later call.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from typing import Any

import torch

from ronde.patching.caller import is_users

__all__ = ["is_blind"]

# What holds nothing else.
_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
# By these code may come by its arguments though it does not name them.
_SPYING = {"locals", "vars", "eval", "exec", "dir", "_getframe", "currentframe", "stack", "_current_frames"}


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
        kept += getattr(hook, "__dict__", {}).values()
    try:
        kept += [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # not assigned yet
        return False
    kept += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    named = (function.__globals__.get(name) for name in _names_in(function.__code__))
    return (
        all(isinstance(each, _SIMPLE) for each in kept)
        and not any(isinstance(each, torch.nn.Module) for each in named)
        and is_users(function)
        and _is_blind(function.__code__, own + 1, 2 if kwargs else 1)
    )


@functools.lru_cache(maxsize=4096)
def _is_blind(code: types.CodeType, first: int, count: int) -> bool:
    """Whether the code never names the arguments from `first` on."""
    if not _SPYING.isdisjoint(_names_in(code)):
        return False
    given = set(code.co_varnames[: code.co_argcount][first : first + count])
    if code.co_flags & inspect.CO_VARARGS:
        given.add(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
    for step in dis.get_instructions(code):
        mentioned = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if step.opname != "LOAD_CONST" and any(each in given for each in mentioned if isinstance(each, str)):
            return False
    return True


def _names_in(code: types.CodeType) -> set[str]:
    """All names that a piece of code uses, with the functions inside it."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return {*code.co_names, *code.co_freevars}.union(*map(_names_in, inner))
