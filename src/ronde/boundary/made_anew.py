"""What is known of a module serves others that are built like it: some scripts make one for every call.

`Wrapped(model)(x)` in a loop, a loss made where it is used, a solver that puts a function into a module of
its own: each is another object with the same code, layers and settings. Rehearsing them for ever would take
longer than the training. So the first few are rehearsed; if they agree, the others are taken for the same.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch

from ronde.boundary.contents import contents
from ronde.boundary.reach import BOOKKEEPING

__all__ = ["Kinds", "built"]

# So many of one kind are rehearsed.
_FEW = 3

Findings = dict[Any, dict[tuple[Any, ...], Any]]


class Kinds:
    """Findings about modules, by how these are built.

    Findings are by form of the call and then by the numbers it was made with, as `Verdicts` keeps them.
    """

    def __init__(self) -> None:
        self._found: dict[Any, list[tuple[Findings, dict[Any, Any]]]] = {}

    def findings(self, kind: Any) -> tuple[Findings, dict[Any, Any]]:
        """Where to keep what is found about one more module of this kind: the first few share nothing.

        Nobody asks which of them are still there: collectors come at other moments on other ranks.
        """
        found = self._found.setdefault(kind, [])
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

    Args:
        watched: the id of a namespace and the name there of what is compared at every call anyway.
    """
    return tuple(
        (
            path,
            type(part),
            tuple(_described(name, value) for name, value in part._parameters.items()),
            tuple(_described(name, value) for name, value in part._buffers.items()),
            tuple(
                _described(name, value)
                for name, value in vars(part).items()
                if name not in BOOKKEEPING and (id(vars(part)), name) not in watched
            ),
        )
        for path, part in module.named_modules()
    )


def _described(name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        try:
            return name, value.shape, value.dtype, value.requires_grad
        except RuntimeError:  # it has none yet, or is several in one
            return name, type(value)
    return name, contents(value)
