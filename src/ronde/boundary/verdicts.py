"""Which models may run on this rank's rows: one rehearsal for each way in which a model is called."""

from __future__ import annotations

import dataclasses
import re
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ronde.boundary.context import Context
from ronde.boundary.global_tensor import GlobalTensor, localize, materialize
from ronde.boundary.guards import Refusal
from ronde.boundary.noted import noted
from ronde.boundary.rehearsal import ROWS, Verdict, rehearse
from ronde.boundary.signature import PLAIN, Behaviour, Number
from ronde.boundary.tree import map_leaves, structure

__all__ = ["Batch", "Verdicts"]

# So many values of its numbers are rehearsed; then they must prove that they decide nothing.
_MANY = 16
_DIGITS = re.compile(r"\b\d+\b")


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """What of a call's arguments is the batch.

    Attributes:
        rows: global rows, the unit in which ranks are given their part.
        inner: entries of the batch axis for each row (1, or T where `[B, T]` was flattened).
        axes: the batch axis of every leaf, None for leaves that enter whole.
    """

    rows: int
    inner: int
    axes: tuple[int | None, ...]


class _Known:
    """Verdicts on one module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.behaviour = Behaviour(module)
        self.renewals = 0
        # By form of the call, then by the numbers that it was made with.
        self.verdicts: dict[Any, dict[tuple[Any, ...], Verdict]] = {}
        # Which numbers of a form of call have been proven to decide nothing.
        self.free: dict[Any, frozenset[int]] = {}

    def renew(self, module: torch.nn.Module) -> None:
        self.behaviour = Behaviour(module)
        self.renewals += 1
        self.verdicts.clear()
        self.free.clear()


class Verdicts:
    """Remembers what rehearsals found; one per session."""

    def __init__(self, context: Context, plain: Callable[..., Any]) -> None:
        self._context = context
        self._plain = plain
        self._modules: weakref.WeakKeyDictionary[torch.nn.Module, _Known] = weakref.WeakKeyDictionary()
        self._told: set[tuple[str, str]] = set()

    def of(self, module: torch.nn.Module, call: Any, values: list[Any], batch: Batch) -> Verdict:
        """The verdict on a call of `module`; `values` are the leaves of `call`."""
        known = self._modules.get(module)
        if known is None:
            known = self._modules[module] = _Known(module)
        elif known.behaviour.outdated():
            known.renew(module)
        form = _form(known.behaviour, call, values, batch)
        numbers = _numbers(known.behaviour, values, known.free.get(form))
        verdicts = known.verdicts.setdefault(form, {})
        verdict = verdicts.get(numbers)
        if verdict is None:
            verdict = self._found(known, form, numbers, module, call, values, batch)
        return verdict

    def _found(
        self,
        known: _Known,
        form: Any,
        numbers: tuple[Any, ...],
        module: torch.nn.Module,
        call: Any,
        values: list[Any],
        batch: Batch,
    ) -> Verdict:
        verdicts = known.verdicts[form]
        if known.renewals >= _MANY:
            verdict = Verdict(False, "its layers or functions are others from call to call")
        elif len(verdicts) < _MANY:
            verdict = self._rehearsed(module, call, values, batch, {})
        else:
            verdict, numbers = self._with_changing_numbers(known, form, numbers, module, call, values, batch)
        if not verdict.sharded:
            self._tell(type(module).__name__, verdict.reason)
        if len(verdicts) <= _MANY:
            verdicts[numbers] = verdict
        return verdict

    def _tell(self, name: str, reason: str) -> None:
        """Each reason once, whatever numbers of rows or shapes are in it."""
        told = name, _DIGITS.sub("", reason)
        if told not in self._told:
            self._told.add(told)
            self._context.note(f"{name} runs in parts, not as one piece: {reason}")

    def _with_changing_numbers(
        self,
        known: _Known,
        form: Any,
        numbers: tuple[Any, ...],
        module: torch.nn.Module,
        call: Any,
        values: list[Any],
        batch: Batch,
    ) -> tuple[Verdict, tuple[Any, ...]]:
        """Numbers that change again and again must not be compared with anything."""
        seen = [*known.verdicts[form], numbers]
        changing = [place for place in range(len(numbers)) if len({each[place] for each in seen}) > 1]
        substitutes = {place: known.behaviour.source(place) for place in changing}
        verdict = self._rehearsed(module, call, values, batch, substitutes)
        if verdict.sharded and all(each.sharded for each in known.verdicts[form].values()):
            known.free[form] = known.free.get(form, frozenset()) | frozenset(changing)
            known.verdicts[form].clear()
            return verdict, _numbers(known.behaviour, values, known.free[form])
        if verdict.sharded:
            verdict = Verdict(False, _changes(substitutes))
        return verdict, numbers

    def _rehearsed(
        self,
        module: torch.nn.Module,
        call: Any,
        values: list[Any],
        batch: Batch,
        substitutes: dict[int, Number],
    ) -> Verdict:
        if self._modules[module].behaviour.hooked():
            return Verdict(False, "it has hooks, which are to see the whole batch")
        if _is_lazy(module):
            return Verdict(False, "it has lazy layers, which are made by their first call")
        few = [_some_rows(value, axis) for value, axis in zip(values, batch.axes, strict=True)]
        run = self._runner(module, call, substitutes)
        rows = min(value.shape[axis] for value, axis in zip(few, batch.axes, strict=True) if axis is not None)
        verdict = rehearse(self._context, module, run, few, batch.axes, rows)
        others = _other_axes(values, batch)
        if verdict.sharded or others == batch.axes:
            return verdict
        second = rehearse(self._context, module, run, few, others, rows)
        return second if second.sharded else verdict

    def _runner(
        self, module: torch.nn.Module, call: Any, substitutes: dict[int, Number]
    ) -> Callable[..., Any]:
        """Runs a copy of the module, with numbers that note what they decide for those that change."""
        parts = list(module.modules())

        def run(twin: torch.nn.Module, values: list[Any]) -> tuple[Any, Any]:
            decisions: list[str] = []
            given = list(values)
            attributes: list[tuple[dict[str, Any], str, Any]] = []
            twins = list(twin.modules())
            for substitute in substitutes.values():
                if substitute.leaf is not None:
                    given[substitute.leaf] = noted(given[substitute.leaf], decisions)
                elif substitute.namespace is not None:
                    owner = next(
                        (t for p, t in zip(parts, twins, strict=True) if vars(p) is substitute.namespace),
                        None,
                    )
                    if owner is None:
                        raise Refusal(_changes(substitutes))
                    attributes.append((vars(owner), substitute.name, vars(owner)[substitute.name]))
            for members, name, value in attributes:
                members[name] = noted(value, decisions)
            args, kwargs = _call_with(given, call)
            output = self._plain(twin, *args, **kwargs)
            for members, name, value in attributes:
                members[name] = value
            if decisions:
                raise Refusal(_changes(substitutes))
            return output, (args, kwargs) if not substitutes else _call_with(values, call)

        return run


def _call_with(values: list[Any], call: Any) -> Any:
    """The arguments with other leaves; the script's own lists and dicts are not given away."""
    remaining = iter(values)
    return map_leaves(lambda _: next(remaining), call, always=True)


def _changes(substitutes: dict[int, Number]) -> str:
    names = ", ".join(sorted({substitute.name for substitute in substitutes.values()}))
    return (
        f"what it does may depend on a number that changes again and again ({names}); "
        f"kept in a tensor, it could not"
    )


def _is_lazy(module: torch.nn.Module) -> bool:
    values = (
        value for part in module.modules() for value in (*part._parameters.values(), *part._buffers.values())
    )
    return any(isinstance(value, (UninitializedBuffer, UninitializedParameter)) for value in values)


def _form(behaviour: Behaviour, call: Any, values: list[Any], batch: Batch) -> Any:
    described = tuple(
        (value.dtype, value.dim(), value.requires_grad) if isinstance(value, torch.Tensor) else type(value)
        for value in values
    )
    grad = torch.is_grad_enabled()
    return structure(call), described, batch.axes, behaviour.modes(), grad, min(batch.rows, ROWS)


def _numbers(behaviour: Behaviour, values: list[Any], free: frozenset[int] | None) -> tuple[Any, ...]:
    found = behaviour.numbers()
    found += [value if type(value) in PLAIN else None for value in values]
    if free:
        return tuple(None if place in free else value for place, value in enumerate(found))
    return tuple(found)


def _other_axes(values: list[Any], batch: Batch) -> tuple[int | None, ...]:
    """The batch where it is not in front: a recurrent network's hidden state is [layers, batch, features]."""

    def place(value: Any, axis: int | None) -> int | None:
        if axis is not None or not isinstance(value, torch.Tensor):
            return axis
        fitting = [dim for dim, size in enumerate(value.shape) if size == batch.rows * batch.inner]
        return fitting[0] if fitting else None

    return tuple(place(value, axis) for value, axis in zip(values, batch.axes, strict=True))


def _some_rows(value: Any, axis: int | None) -> Any:
    """Rows for a rehearsal: this rank's own, or the whole where a rank has fewer than it takes."""
    if axis is None or not isinstance(value, GlobalTensor):
        return value
    layout = value._layout
    fewest = min(layout.count(rank) for rank in range(layout.world_size))
    return (localize(value) if fewest >= ROWS else materialize(value)).detach()
