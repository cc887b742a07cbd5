"""Detection of rows that outlive an observed call outside of its output.

Contents of the module tree are searched. Anything else (a closure, a global list, a function's cache) is
found by reference counts: a tensor that the script can reach has more references than the autograd graph and
the output account for.
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

from ronde.patching.torch_internals import FunctionBase
from ronde.rowwise.rows_int import RowCounts
from ronde.rowwise.undo import ContainerSnapshot
from ronde.rowwise.verdict import MixesRows
from ronde.rowwise.watch import CallWatch

__all__ = ["VisibleRows", "check_tree", "check_variables"]

_ELSEWHERE = "it keeps values of the batch in a variable or object outside of the module [R342]"


def check_tree(watch: CallWatch, module: torch.nn.Module) -> None:
    """Refuse batch data, or numbers of rows, in the module's tree."""
    for name in _of_rows(watch, ContainerSnapshot.by(module)):
        raise MixesRows(f"it keeps {name}, which depends on the batch, on itself [R342]")
    if watch.undo.writes_on_arguments() or watch.undo.arguments.changed():
        raise MixesRows("it changes a list, dict or object among its arguments [R342]")


def check_variables(watch: CallWatch, variables: Iterable[tuple[str, Any]]) -> None:
    """Refuse batch data, or numbers of rows, in variables that the code names."""
    for name in _of_rows(watch, ContainerSnapshot(variables)):
        raise MixesRows(f"the variable {name} depends on the batch [R342]")


def _of_rows(watch: CallWatch, held: ContainerSnapshot) -> list[str]:
    """Return names of values that depend on the batch or its number of rows."""
    return [*(name for name, tensor in held.tensors if watch.rows_of(tensor) is not None), *held.counts]


class VisibleRows:
    """Tensors of rows that were visible to the model's code.

    Args:
        given: leaves of the arguments.
        counts: counter of living numbers of rows.
    """

    def __init__(self, given: Sequence[Any], counts: RowCounts) -> None:
        self._counts = counts
        self._alone = _references_to_one()
        self._given = [
            (weakref.ref(tensor), _references(tensor)) for tensor in given if isinstance(tensor, torch.Tensor)
        ]
        self._made: dict[int, weakref.ref[torch.Tensor]] = {}

    def note(self, tensor: torch.Tensor) -> None:
        """Record a tensor that becomes visible to the model's code."""
        self._made[id(tensor)] = weakref.ref(tensor)

    def check(self, output: list[Any]) -> None:
        """Refuse tensors that are held by others than the output and the autograd graph.

        Args:
            output: list with the sole reference to the call's output.
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

    def _held(self, returned: _Returned) -> list[torch.Tensor]:
        """Return tensors with more references than are accounted for."""
        before = {
            id(tensor): held - self._alone for ref, held in self._given if (tensor := ref()) is not None
        }
        excess: dict[int, int] = {}
        suspects: list[torch.Tensor] = []
        for ref in {**self._made, **{id(ref()): ref for ref, _ in self._given}}.values():
            tensor = ref()
            if tensor is None:
                continue
            known = before.get(id(tensor), 0) + returned.references[id(tensor)]
            more = _references(tensor) - self._alone - known
            if more > 0:
                excess[id(tensor)] = more
                suspects.append(tensor)
        del tensor
        innocent = _held_for_backward(suspects, returned.containers) if suspects else {}
        return [each for each in suspects if excess[id(each)] > innocent.get(id(each), 0)]


class _Returned:
    """References in a call's output.

    Args:
        output: list that holds the output.

    Attributes:
        references: number of references to each tensor, by its id.
        containers: ids of the containers in the output.
    """

    def __init__(self, output: list[Any]) -> None:
        self.references: Counter[int] = Counter()
        self.containers: set[int] = set()
        pending: list[Any] = [output]
        while pending:
            each = pending.pop()
            if id(each) in self.containers:
                continue
            self.containers.add(id(each))
            for held in gc.get_referents(each):
                if isinstance(held, torch.Tensor):
                    self.references[id(held)] += 1
                elif not isinstance(held, _NO_DATA):
                    pending.append(held)


_NO_DATA = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, torch.nn.Module)


def _references(tensor: Any) -> int:
    """Count references to a tensor, except the graph's, including the counter's own."""
    return sys.getrefcount(tensor) - (tensor._use_count() > 1)


def _references_to_one() -> int:
    """Count references to a tensor that one local variable holds. The number depends on the interpreter."""
    alone = torch.empty(0)
    return _references(alone)


@functools.cache
def _tells_of_graphs() -> bool:
    """Return whether reference counts distinguish autograd's references from Python's."""
    with torch.inference_mode(False), torch.enable_grad():
        made = torch.ones(1, requires_grad=True) * 2
        result = made.sin()
        alone = _references(made)
        kept = [made]
        both = _references(made)
        del kept
        return result.requires_grad and both == alone + 1


def _held_for_backward(tensors: list[torch.Tensor], known: set[int]) -> Counter[int]:
    """Count each tensor's holders that exist only for backward.

    Such a holder is a function's context or a part of a checkpoint; or it has no holder in Python: values
    that a saved-tensor hook has packed belong to the C++ graph.

    Args:
        known: ids of holders that are accounted for.
    """
    holders = [each for each in _referrers(tensors) if id(each) not in known]
    outer = _referrers(holders) if holders else []
    found: Counter[int] = Counter()
    for holder in holders:
        around = [each for each in outer if any(held is holder for held in gc.get_referents(each))]
        if _is_of_backward(holder) or all(map(_is_of_backward, around)):
            found.update(id(held) for held in gc.get_referents(holder) if isinstance(held, torch.Tensor))
    return found


def _referrers(values: list[Any]) -> list[Any]:
    """Return the holders of these values, except frames, iterators and the list itself."""
    passing = (types.FrameType, types.GeneratorType, type(iter([])))
    found = gc.get_referrers(*values)
    return [each for each in found if each is not values and not isinstance(each, passing)]


def _is_of_backward(holder: Any) -> bool:
    return isinstance(holder, FunctionBase) or _home(holder) == "torch.utils.checkpoint"


def _home(holder: Any) -> str:
    return holder.__module__ if isinstance(holder, types.FunctionType) else type(holder).__module__


def _is_namespace(holder: dict[Any, Any]) -> bool:
    """Return whether a dict is an object's `__dict__`, from which nothing may be removed."""
    return any(getattr(each, "__dict__", None) is holder for each in gc.get_referrers(holder))


def _take_back(tensor: torch.Tensor) -> None:
    """Remove a tensor from the lists and dicts that hold it."""
    for holder in gc.get_referrers(tensor):
        if isinstance(holder, list):
            holder[:] = [each for each in holder if each is not tensor]
        elif isinstance(holder, dict) and not _is_namespace(holder):
            for key in [key for key, each in holder.items() if each is tensor]:
                del holder[key]
