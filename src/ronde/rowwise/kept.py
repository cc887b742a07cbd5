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
from ronde.rowwise.rows import Counts
from ronde.rowwise.undo import Held
from ronde.rowwise.watch import Watch

__all__ = ["Kept", "check_tree", "check_variables"]

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


def check_variables(watch: Watch, variables: Iterable[tuple[str, Any]]) -> None:
    """Refuse what variables that the code names hold of the batch, or of the number of its rows."""
    held = Held(variables)
    found = [*held.counts, *(name for name, tensor in held.tensors if _is_of_rows(watch, tensor))]
    if found:
        raise MixesRows(f"the variable {found[0]} depends on the batch")


def _is_of_rows(watch: Watch, tensor: torch.Tensor) -> bool:
    mark = watch.of(tensor)
    return mark is not None and type(mark) is not Drawn


class Kept:
    """Tensors of rows that the model's code had in hand.

    Args:
        given: the leaves of the arguments.
        counts: knows of numbers of rows that are still there.
    """

    def __init__(self, given: Sequence[Any], counts: Counts) -> None:
        self._counts = counts
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
        expected = _references_from(output)
        if self._kept(expected) or self._counts.alive:
            gc.collect()
            kept = tuple(self._kept(expected))
            for tensor in kept:
                _take_back(tensor)
            if kept or self._counts.alive:
                raise MixesRows(_ELSEWHERE)

    def _kept(self, expected: Counter[int]) -> list[torch.Tensor]:
        """Tensors that have more holders than are accounted for.

        Args:
            expected: how often the output refers to each.
        """
        found: list[torch.Tensor] = []
        given = {id(ref()) for ref, _ in self._given}
        for ref, before in self._given:
            tensor = ref()
            if tensor is not None:
                self._judge(tensor, before - 1 + expected[id(tensor)], found)
        for ref in self._made.values():
            tensor = ref()
            if tensor is not None and id(tensor) not in given:
                self._judge(tensor, expected[id(tensor)], found)
        return found

    def _judge(self, tensor: torch.Tensor, expected: int, found: list[torch.Tensor]) -> None:
        excess = _holders(tensor) - 2 - expected  # this function and its caller hold it too
        if excess > 0 and excess > _held_for_backward(tensor):
            found.append(tensor)

    def after_step(self) -> list[str]:
        """What is held of this call when a training step has ended, as "a tensor of shape [8, 6]"."""
        self._given = []
        gc.collect()
        return [f"a tensor of shape {list(each.shape)}" for each in self._kept(Counter())]


def _holders(tensor: torch.Tensor) -> int:
    """References to a tensor from Python, that of the asking function too."""
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


def _held_for_backward(tensor: torch.Tensor) -> int:
    """How many objects hold a tensor that are there for backward only."""
    return sum(_is_for_backward(each, 2) for each in gc.get_referrers(tensor))


def _is_for_backward(holder: Any, depth: int) -> bool:
    """Whether it is, or is held by, a context of a function or a part of a checkpoint, or by no object at all:
    what a hook has packed is held by the graph."""
    if isinstance(holder, torch._C._FunctionBase) or _home(holder) == "torch.utils.checkpoint":
        return True
    if not depth or not isinstance(holder, (dict, list, tuple, types.CellType)):
        return False
    holders = [each for each in gc.get_referrers(holder) if not _is_ours(each)]
    return all(_is_for_backward(each, depth - 1) for each in holders)


def _home(holder: Any) -> str:
    return holder.__module__ if isinstance(holder, types.FunctionType) else type(holder).__module__


def _is_ours(holder: Any) -> bool:
    """Whether it is what looks for holders itself."""
    return isinstance(holder, types.FrameType) or type(holder).__name__ in ("list_iterator", "generator")


def _is_namespace(holder: dict[Any, Any]) -> bool:
    """Whether it holds the attributes of an object, which need not be whole without one."""
    return any(getattr(each, "__dict__", None) is holder for each in gc.get_referrers(holder))


def _take_back(tensor: torch.Tensor) -> None:
    """Out of the containers that it was put into."""
    for holder in gc.get_referrers(tensor):
        if isinstance(holder, list):
            holder[:] = [each for each in holder if each is not tensor]
        elif isinstance(holder, dict) and not _is_namespace(holder):
            for key in [key for key, each in holder.items() if each is tensor]:
                del holder[key]
