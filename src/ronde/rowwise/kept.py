"""Rows that are still there when an observed call has ended, and are not its output: something keeps them.

What the tree of modules holds is looked up. Anything else (a closure, a global list, a cache of a function) is
found by counting references: a tensor that the script can reach has more of them than the gradient graph and the
output account for.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ronde.rowwise.labels import Drawn
from ronde.rowwise.mixes_rows import MixesRows
from ronde.rowwise.undo import Held
from ronde.rowwise.watch import Watch

__all__ = ["Kept", "check_tree"]

_ELSEWHERE = "it keeps values of the batch in a variable or object that is not its own"


def check_tree(watch: Watch, module: torch.nn.Module) -> None:
    """Refuse what the module's tree holds of the batch, or of the number of its rows."""
    held = Held.by(module)
    for name, tensor in held.tensors:
        if _is_of_rows(watch, tensor):
            raise MixesRows(f"it keeps {name}, which depends on the batch, on itself")
    if held.counts:
        raise MixesRows(f"it keeps {held.counts[0]}, which depends on the batch, on itself")
    if watch.undo.arguments.changed():
        raise MixesRows("it changes a list, dict or object among its arguments")


def _is_of_rows(watch: Watch, tensor: torch.Tensor) -> bool:
    mark = watch.of(tensor)
    return mark is not None and type(mark) is not Drawn


class Kept:
    """Tensors of rows that the model's code had in hand.

    Args:
        given: the leaves of the arguments.
    """

    def __init__(self, given: Sequence[Any]) -> None:
        self._given = [
            (weakref.ref(tensor), _holders(tensor)) for tensor in given if isinstance(tensor, torch.Tensor)
        ]
        self._made: dict[int, weakref.ref[torch.Tensor]] = {}

    def note(self, tensor: torch.Tensor) -> None:
        """The model's code gets hold of it."""
        self._made[id(tensor)] = weakref.ref(tensor)

    def check(self, output: list[Any]) -> None:
        """Refuse what others than the output and the gradient graph hold.

        Args:
            output: a list that holds what was returned, and is all that does.
        """
        if torch.is_grad_enabled() and not _tells_of_graphs():
            return
        if self._too_many(output):
            gc.collect()
            if self._too_many(output):
                raise MixesRows(_ELSEWHERE)

    def _too_many(self, output: list[Any]) -> bool:
        expected = _references_from(output)
        given = {id(ref()) for ref, _ in self._given}
        for ref, before in self._given:
            tensor = ref()
            if tensor is not None and _holders(tensor) > before + expected[id(tensor)]:
                return True
        for key, ref in self._made.items():
            tensor = ref()
            if tensor is None or key in given or id(tensor) != key:
                continue
            if _holders(tensor) > expected[key] + 1:
                if not _is_held_by_graph(tensor, expected[key]):
                    return True
        return False

    def after_step(self) -> list[str]:
        """What is still there of a training step when it has ended: described by shape."""
        gc.collect()
        alive = [ref() for ref in self._made.values()]
        return [f"a tensor of shape {list(each.shape)}" for each in alive if each is not None]


def _holders(tensor: torch.Tensor) -> int:
    """References to a tensor from Python, those of the asking function and of what it was called by too."""
    return sys.getrefcount(tensor) - (tensor._use_count() > 1) - 2


@functools.cache
def _tells_of_graphs() -> bool:
    """Whether one can tell what a gradient graph holds from what Python does."""
    with torch.inference_mode(False), torch.enable_grad():
        made = torch.ones(1, requires_grad=True) * 2
        result = made.sin()
        alone = _holders(made)
        kept = [made]
        both = _holders(made)
        del kept
        return result.requires_grad and both == alone + 1


def _references_from(output: list[Any]) -> Counter[int]:
    """How often tensors are referred to by what was returned."""
    found: Counter[int] = Counter()
    seen: set[int] = set()
    pending: list[Any] = [output]
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        for held in gc.get_referents(each):
            if isinstance(held, torch.Tensor):
                found[id(held)] += 1
            elif not isinstance(held, _NO_DATA):
                pending.append(held)
    return found


_NO_DATA = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, torch.nn.Module)


def _is_held_by_graph(tensor: torch.Tensor, expected: int) -> bool:
    """Whether what holds a tensor is there for backward only."""
    holders = [each for each in gc.get_referrers(tensor) if not isinstance(each, types.FrameType)]
    return False and bool(holders) and bool(expected)
