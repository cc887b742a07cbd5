"""Methods that are called past a module's own call, as `net.forward(x)` is in place of `net(x)`.

What stands in such a method is carried out on global values, and the modules that it calls are cut one by
one: nobody has seen that they belong together.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from types import CodeType, FrameType
from typing import Any, TypeGuard

import torch
from torch.nn.parameter import is_lazy

from ronde.patching.caller import is_script

__all__ = ["PastCalls", "method_past_call"]

# Of its module's parameters, those of a module that is nearly the whole: then hardly anything is in parts.
_NEARLY_ALL = 0.9
_MOST_NAMES = 3
# Through this every call of a module passes.
_CALL: CodeType = torch.nn.Module._call_impl.__code__  # pyright: ignore[reportFunctionMemberAccess]
# Files of decorators that may stand between a method and who calls it: `no_grad`, `autocast`.
_DECORATORS = ("torch.utils._contextlib", "torch.amp.autocast_mode")


class PastCalls:
    """Remembers methods that training calls past the call of their module; one per session."""

    def __init__(self) -> None:
        # By class, then by method.
        self._methods: dict[str, dict[str, _Method]] = {}

    def note(self, module: torch.nn.Module, *, sharded: bool) -> None:
        """The script calls this module, around which no other is called."""
        size = _size(module)
        found = method_past_call(sys._getframe(1), module) if size else None
        if found is not None and not _calls_in_its_own_way(type(found[0])):
            owner, name = found
            method = self._methods.setdefault(type(owner).__name__, {}).setdefault(name, _Method())
            method.modules.add(module)
            method.several |= len(method.modules) > 1
            method.largest = max(method.largest, size / _size(owner))
            method.sharded |= sharded

    def sentences(self) -> list[str]:
        """What the user is told at the end, once for each class."""
        return [
            _sentence(kind, names)
            for kind, methods in self._methods.items()
            if (names := [name for name, method in methods.items() if method.in_parts(name)])
        ]


class _Method:
    """What is known of one: the modules that it calls, and the share that the largest of them has."""

    __slots__ = ("largest", "modules", "several", "sharded")

    def __init__(self) -> None:
        self.modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.several = self.sharded = False
        self.largest = 0.0

    def in_parts(self, name: str) -> bool:
        """Whether more than one piece is worth a word; of `forward` the rest may be parameters of its own."""
        return self.sharded and self.largest < _NEARLY_ALL and (self.several or name == "forward")


def _sentence(kind: str, names: list[str]) -> str:
    if "forward" in names:
        return (
            f"{kind} runs in parts, as its forward is called past its own call: the modules inside it run on "
            f"shards one by one, right but with less speed-up; write net(...) in place of net.forward(...)"
        )
    return (
        f"{kind} runs in parts where {' or '.join(names[:_MOST_NAMES])} is called past its forward: the "
        f"modules inside it run on shards one by one, right but with less speed-up; to run as one piece such "
        f"a method must be called from forward, and that by net(...)"
    )


def method_past_call(frame: FrameType | None, module: torch.nn.Module) -> tuple[torch.nn.Module, str] | None:
    """The module around this one of which the user's code has called a method, and the method.

    The nearest one, with the method through which it was entered, but the outermost `forward` where there is
    any. None where a module is called as it is meant to be, at whatever distance, and for what a constructor
    computes: to find a size, mostly.
    """
    found: tuple[torch.nn.Module, str] | None = None
    while frame is not None:
        name = frame.f_code.co_name
        if frame.f_code is _CALL or (name in ("__init__", "__call__") and _is_method(frame)):
            return None
        open_to = found is None or found[1] != "forward" or name == "forward"
        if open_to and _is_called_by_script(frame) and _is_method(frame):
            owner = frame.f_locals.get(frame.f_code.co_varnames[0])
            if owner is module:
                return None
            ours = is_script(frame.f_code.co_filename) or name == "forward"
            inner = found is None or name == "forward" or owner is found[0]
            if ours and inner and _contains(owner, module):
                found = owner, name
        frame = frame.f_back
    return found


def _calls_in_its_own_way(kind: type) -> bool:
    """Whether `net(x)` is something else than to call `forward`."""
    return any("__call__" in vars(each) for each in kind.__mro__ if each is not torch.nn.Module)


def _contains(owner: object, module: torch.nn.Module) -> TypeGuard[torch.nn.Module]:
    return isinstance(owner, torch.nn.Module) and any(part is module for part in owner.modules())


def _is_method(frame: FrameType) -> bool:
    """Whether its code is that of a module's method, of a class that stands in the same file.

    A frame's variables are better not asked for in vain: before Python 3.13 it keeps a copy of them then.
    """
    code = frame.f_code
    return bool(code.co_argcount) and any(
        issubclass(type(kind), type)
        and issubclass(kind, torch.nn.Module)
        and _code(vars(kind).get(code.co_name)) is code
        for kind in tuple(frame.f_globals.values())
    )


def _code(member: Any) -> CodeType | None:
    function = member.fget if isinstance(member, property) else member
    return getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None


def _is_called_by_script(frame: FrameType) -> bool:
    """Not by a library, of which a user cannot change how it calls what."""
    caller = frame.f_back
    while caller is not None and caller.f_globals.get("__name__") in _DECORATORS:
        caller = caller.f_back
    return caller is not None and is_script(caller.f_code.co_filename)


def _size(module: torch.nn.Module) -> int:
    return sum(0 if is_lazy(each) else each.numel() for each in module.parameters())
