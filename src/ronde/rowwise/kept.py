"""Rows that are still there when an observed call has ended, and are not its output: something keeps them.

What the tree of modules holds is looked up. Anything else (a closure, a global list, a cache of a function)
is found by counting references: a tensor that the script can reach has more of them than the gradient graph
and the output account for.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from ronde.rowwise.labels import Drawn
from ronde.rowwise.mixes_rows import MixesRows
from ronde.rowwise.rows import Counts
from ronde.rowwise.undo import Held
from ronde.rowwise.watch import Watch

__all__ = ["Kept", "check_tree"]

_ELSEWHERE = "it keeps values of the batch in a variable or object that is not its own"


def check_tree(watch: Watch, module: torch.nn.Module) -> None:
    """Refuse what the module's tree holds of the batch, or of the number of its rows."""
    held = Held.by(module)
    kept = [name for name, tensor in held.tensors if type(watch.of(tensor)) not in (type(None), Drawn)]
    for name in (*kept, *held.counts):
        raise MixesRows(f"it keeps {name}, which depends on the batch, on itself")
    if watch.undo.arguments.changed():
        raise MixesRows("it changes a list, dict or object among its arguments")


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
        returned = _Returned(output)
        if self._held(returned) or self._counts.alive:
            gc.collect()
            held = tuple(self._held(returned))
            for tensor in held:
                _take_back(tensor)
            if held or self._counts.alive:
                raise MixesRows(_ELSEWHERE)

    def after_step(self) -> list[str]:
        """What is held of this call when a training step has ended, as "a tensor of shape [8, 6]"."""
        self._given = []
        gc.collect()
        return [f"a tensor of shape {list(each.shape)}" for each in self._held(_Returned([]))]

    def _held(self, returned: _Returned) -> list[torch.Tensor]:
        """Tensors that have more holders than are accounted for."""
        found: list[torch.Tensor] = []
        given = {id(ref()) for ref, _ in self._given}
        for ref, before in self._given:
            tensor = ref()
            if tensor is not None and returned.is_held_elsewhere(tensor, before - 1):
                found.append(tensor)
        for ref in self._made.values():
            tensor = ref()
            if tensor is not None and id(tensor) not in given and returned.is_held_elsewhere(tensor, 0):
                found.append(tensor)
        return found


class _Returned:
    """What a call returned: the containers, and how often they refer to which tensors.

    Args:
        output: a list that holds it.
    """

    def __init__(self, output: list[Any]) -> None:
        self._references: Counter[int] = Counter()
        self._containers = {id(self)}
        pending: list[Any] = [output]
        while pending:
            each = pending.pop()
            if id(each) in self._containers:
                continue
            self._containers.add(id(each))
            for held in gc.get_referents(each):
                if isinstance(held, torch.Tensor):
                    self._references[id(held)] += 1
                elif not isinstance(held, _NO_DATA):
                    pending.append(held)

    def is_held_elsewhere(self, tensor: torch.Tensor, before: int) -> bool:
        """Whether it has more holders than before, these and what is there for backward only."""
        # This function and its caller hold it too.
        excess = _holders(tensor) - 2 - before - self._references[id(tensor)]
        return excess > 0 and excess > sum(_is_for_backward(each, 2) for each in self._referrers(tensor))

    def _referrers(self, tensor: torch.Tensor) -> list[Any]:
        return [each for each in _referrers(tensor) if id(each) not in self._containers]


_NO_DATA = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, torch.nn.Module)
_PASSING = (types.FrameType, types.GeneratorType, type(iter([])))


def _holders(tensor: torch.Tensor) -> int:
    """References to a tensor from Python, that of the asking function too, but not that of the graph."""
    held: Any = tensor
    return sys.getrefcount(tensor) - (held._use_count() > 1) - 3


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


def _referrers(value: Any) -> list[Any]:
    """What holds a value, without what looks for it here."""
    return [each for each in gc.get_referrers(value) if not isinstance(each, _PASSING)]


def _is_for_backward(holder: Any, depth: int) -> bool:
    """Whether it is, or is held by, a function's context or a part of a checkpoint, or by no object at all.

    What a hook for saved tensors has packed is held by the graph, which is none of Python's.
    """
    if isinstance(holder, torch._C._FunctionBase) or _home(holder) == "torch.utils.checkpoint":
        return True
    if not depth or not isinstance(holder, (dict, list, tuple, types.CellType)):
        return False
    found = _referrers(holder)
    # Of a list that was found on the way there is nothing to know.
    return all(_is_for_backward(each, depth - 1) for each in found if not _is_passing(each, holder))


def _is_passing(holder: Any, held: Any) -> bool:
    """Whether it is a list of holders, made here."""
    return isinstance(holder, list) and any(each is held for each in holder) and not _referrers(holder)


def _home(holder: Any) -> str:
    return holder.__module__ if isinstance(holder, types.FunctionType) else type(holder).__module__


def _take_back(tensor: torch.Tensor) -> None:
    """Out of the containers that it was put into."""
    for holder in gc.get_referrers(tensor):
        if isinstance(holder, list):
            holder[:] = [each for each in holder if each is not tensor]
        elif isinstance(holder, dict):
            for key in [key for key, each in holder.items() if each is tensor]:
                del holder[key]
