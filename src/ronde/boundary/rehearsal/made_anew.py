"""What is known of a module serves others that are built like it: some scripts make one for every call.

`Wrapped(model)(x)` in a loop, a loss made where it is used, a solver that puts a function into a module of
its own: each is another object with the same code, layers and settings. Rehearsing them for ever would take
longer than the training. So the first few are rehearsed; if they agree, the others are taken for the same.
"""

from __future__ import annotations

import types
from collections.abc import Container
from typing import Any

import torch

from ronde.boundary.reach import BOOKKEEPING

__all__ = ["Kinds", "built"]

# So many of one kind are rehearsed.
_FEW = 3
# Kinds that are remembered.
_MOST = 64
_DEEP, _LONG = 3, 64

Findings = dict[Any, dict[tuple[Any, ...], Any]]


class Kinds:
    """Findings about modules, by how these are built.

    Findings are by form of the call and then by the numbers it was made with, as `Verdicts` keeps them.
    """

    def __init__(self) -> None:
        # In the order in which they came, the same on all ranks.
        self._found: dict[Any, list[tuple[Findings, dict[Any, Any]]]] = {}

    def findings(self, kind: Any) -> tuple[Findings, dict[Any, Any]]:
        """Where to keep what is found about one more module of this kind: the first few share nothing.

        Nobody asks which of them are still there: collectors come at other moments on other ranks.

        Args:
            kind: None where not all of the module can be compared.
        """
        if kind is None:
            return {}, {}
        found = self._found.setdefault(kind, [])
        if len(self._found) > _MOST:
            del self._found[next(iter(self._found))]
        if len(found) < _FEW:
            found.append(({}, {}))
            return found[-1]
        return found[-1] if _agree([findings for findings, _ in found]) else ({}, {})


def _agree(several: list[Findings]) -> bool:
    """Whether all were found to be alike, as far as they were called alike."""
    last = several[-1]
    if not last:
        return False
    return all(
        held.verdict == last[form][numbers].verdict
        for findings in several[:-1]
        for form, by_numbers in findings.items()
        for numbers, held in by_numbers.items()
        if form in last and numbers in last[form]
    )


def built(module: torch.nn.Module, watched: Container[tuple[int, str]]) -> Any:
    """How a module is built: classes, names, shapes and settings, as something to look up.

    None where an attribute is something that could hold more than can be seen: a module in a list, an object
    of a class, a function that closes over something.

    Args:
        watched: the id of a namespace and the name there of what is compared at every call anyway.
    """
    try:
        return tuple(
            (path, *_parts(part), _attributes(part, watched)) for path, part in module.named_modules()
        )
    except (_Closed, RuntimeError):  # what is lazy has no shape yet
        return None


class _Closed(Exception):
    """Something that cannot be looked through."""


def _parts(part: torch.nn.Module) -> Any:
    held = (*part._parameters.items(), *part._buffers.items())
    return type(part), tuple((name, _described(value)) for name, value in held)


def _attributes(part: torch.nn.Module, watched: Container[tuple[int, str]]) -> Any:
    own = vars(part)
    return tuple(
        (name, None if type(value) in _PLAIN and (id(own), name) in watched else _described(value))
        for name, value in own.items()
        if name not in BOOKKEEPING
    )


def _described(value: Any, depth: int = _DEEP) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if issubclass(kind, torch.Tensor):
        return kind, value.shape, value.dtype, value.requires_grad
    if kind in (list, tuple) and depth and len(value) <= _LONG:
        return kind, *(_described(item, depth - 1) for item in value)
    if kind is dict and depth and len(value) <= _LONG:
        return kind, *((_described(key, 0), _described(item, depth - 1)) for key, item in value.items())
    if kind is types.FunctionType and not (value.__closure__ or value.__defaults__ or value.__kwdefaults__):
        return value
    if kind is types.BuiltinFunctionType and isinstance(value.__self__, (types.ModuleType, type, type(None))):
        return value
    raise _Closed


_PLAIN = {bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size}
