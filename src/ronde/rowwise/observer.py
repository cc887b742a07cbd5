"""The dispatch mode of an observed call: checks, runs and marks each operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ronde.patching.torch_internals import (
    DisableTorchFunction,
    HigherOrderOperator,
    TorchDispatchMode,
    disable_current_modes,
)
from ronde.rng.by_parts import carry_out as by_parts
from ronde.rng.by_parts import is_made_of_others
from ronde.rng.draws import is_random
from ronde.rowwise import draws, repeat, views
from ronde.rowwise.checks import only_checks
from ronde.rowwise.labels import Drawn, Label, Mixed, Relative, address
from ronde.rowwise.normalize import keeps_statistics, require_all
from ronde.rowwise.operation import ObservedOperation, tensors
from ronde.rowwise.sequence import follow, follow_function
from ronde.rowwise.verdict import CATCHES, HOST_READ, MixesRows, meet
from ronde.rowwise.watch import Away, CallWatch
from ronde.tensor.tree import leaves

__all__ = ["Observer"]

_READS = {"_local_scalar_dense", "is_nonzero", "equal", "item"}
_STATISTICS = "statistics of a norm"
_LIKE = {"zeros_like", "ones_like", "full_like", "empty_like"}


class Observer(TorchDispatchMode):
    """Runs each operation of an observed call, and marks its results.

    Args:
        note: function called with each tensor of rows that several operations made as one.
    """

    supports_higher_order_operators = True

    def __init__(self, watch: CallWatch, note: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._watch, self._note_row = watch, note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_made_of_others(func):
            return by_parts(self, func, args, kwargs)
        if isinstance(func, HigherOrderOperator):
            raise MixesRows(meet(str(func)))
        with DisableTorchFunction():
            try:
                return self._carried_out(func, args, kwargs)
            except MixesRows as found:
                self._watch.counts.problem = self._watch.counts.problem or str(found)
                raise

    def _carried_out(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        watch = self._watch
        if watch.away is Away.TRIED:
            return func(*args, **kwargs)
        if watch.away is not Away.ENDED and watch.ranks.catches():
            raise MixesRows(CATCHES)  # on shards one rank alone would continue
        op = ObservedOperation(func, args, kwargs, watch.of)
        if watch.away:
            self._note(op)
            result = op.run()
        else:
            result = self._looked_at(op)
        follow(watch.marks, func, args, kwargs, result)
        return result

    def _looked_at(self, op: ObservedOperation) -> Any:
        watch = self._watch
        watch.note(op.func, op.args, op.kwargs)
        _check_operands(watch, op)
        _check_words(op)
        if op.facts.written:
            _check_writes(watch, op)
        if keeps_statistics(op):
            raise MixesRows(f"it keeps {_STATISTICS}, which depends on the batch, on itself [R342]")
        return _carry_out(watch, op)

    def _note(self, op: ObservedOperation) -> None:
        """Record an operation inside of a function that is analysed as one."""
        watch = self._watch
        watch.undo.keep(op.written, watch.marks)
        if watch.away is not Away.NOTED:
            return
        watch.note(op.func, op.args, op.kwargs)
        _check_words(op)
        for target in op.written:
            name = watch.undo.name_of(target)
            if name is not None and not watch.marks.is_new(target):
                raise MixesRows(f"it keeps {name}, which depends on the batch, on itself [R342]")

    def seen(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Analyse an operation that bypassed the dispatcher, such as a recurrent layer."""
        watch = self._watch
        if watch.away:
            return
        with DisableTorchFunction(), disable_current_modes():
            op = ObservedOperation(func, args, kwargs, watch.of)
            watch.note(func, args, kwargs)
            _check_operands(watch, op)
            kinds = {type(mark) for mark in op.marks} - {type(None), Drawn}
            if Mixed in kinds or Relative in kinds:
                raise MixesRows(meet(op.facts.name))
            if kinds:
                repeat.mark_results(watch, op, result, repeat.learn(watch, op))
            follow(watch.marks, func, args, kwargs, result)

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Implement `Onlooker.unseen`. Collective: a problem of one rank ends the call on all.

        Raises:
            Elsewhere: another rank has a problem.
        """
        require_all(self._watch)
        with self._watch.looking_away(Away.JOINED), disable_current_modes():
            yield

    def as_one(self, name: str, given: Any, run: Callable[[], Any]) -> Any:
        """Implement `Onlooker.as_one`."""
        watch, values = self._watch, tensors(list(leaves(given)))
        if watch.away:
            return run()
        if watch.ranks.catches():
            raise self._mixes(CATCHES)
        with DisableTorchFunction():
            marks = [mark for each in values if (mark := watch.rows_of(each)) is not None]
        labels = [mark for mark in marks if type(mark) is Label]
        if not labels or len(labels) < len(marks):
            raise self._mixes(meet(name))
        watch.sequence.steps.append((name, ()))
        with self.unseen():
            result = run()
        order, axis = labels[0].order, labels[0].axis
        with watch.looking_away(), DisableTorchFunction():
            made = tensors(list(leaves(result)))
            watch.made(made)
            for each in made:
                if each.dim() <= axis or each.shape[axis] != len(order):
                    raise self._mixes(meet(name))
                watch.label(each, order, axis)
                self._note_row(each)
            follow_function(watch.marks, values, made)
        return result

    def _mixes(self, why: str) -> MixesRows:
        self._watch.counts.problem = self._watch.counts.problem or why
        return MixesRows(why)


def _check_words(op: ObservedOperation) -> None:
    names = op.facts.names
    if "scale_grad_by_freq" in names and op.given(names.index("scale_grad_by_freq")):
        raise MixesRows(
            "its backward counts how often a word is in the batch (scale_grad_by_freq=True) [R340]"
        )


def _check_operands(watch: CallWatch, op: ObservedOperation) -> None:
    """Refuse operands with a gradient that were computed outside of the module."""
    for operand, mark in op.pairs():
        if mark is None and operand.requires_grad and not watch.marks.is_new(operand):
            if watch.undo.name_of(operand) is not None or watch.undo.is_given(operand):
                continue
            if operand.grad_fn is not None and address(operand) not in watch.foreign:
                raise MixesRows("it uses a value with a gradient that was computed outside of it [R348]")
            watch.foreign.add(address(operand))


def _check_writes(watch: CallWatch, op: ObservedOperation) -> None:
    written = op.written
    rows = any(mark is not None and type(mark) is not Drawn for mark in op.marks)
    for target in written:
        if watch.undo.is_given(target):
            raise MixesRows(f"it changes its argument in place ({op.facts.name}) [R343]")
        if not rows or watch.marks.is_new(target):
            continue
        name = watch.undo.name_of(target)
        if name is not None:
            raise MixesRows(f"it keeps {name}, which depends on the batch, on itself [R342]")
        raise MixesRows(f"it changes a tensor outside of the module in place ({op.facts.name}) [R343]")
    watch.undo.keep(written, watch.marks)


def _carry_out(watch: CallWatch, op: ObservedOperation) -> Any:
    kinds = {type(mark) for mark in op.marks}
    kinds.discard(type(None))
    name = op.facts.name
    if is_random(op.func, op.args, op.kwargs):
        return draws.carry_out(watch, op)
    if not kinds:
        return _without_rows(watch, op, None)
    if kinds == {Drawn}:
        mark = next(mark for mark in op.marks if type(mark) is Drawn)
        if (name in _READS or _shape_tells(op)) and not only_checks():
            raise MixesRows(f"its forward reads {mark.what} on the host [R335]")
        return _without_rows(watch, op, mark)
    if name in _READS or _shape_tells(op):
        if name in _READS and (watch.checking or only_checks()):
            return op.run()
        raise MixesRows(HOST_READ)
    if name.startswith("new_"):
        return _new(watch, op)
    if Mixed in kinds:
        return _mixed(watch, op, kinds)
    return _of_rows(watch, op, kinds)


def _of_rows(watch: CallWatch, op: ObservedOperation, kinds: set[type]) -> Any:
    name = op.facts.name
    label = op.mark(op.args[0]) if op.args and isinstance(op.args[0], torch.Tensor) else None
    if name in _LIKE and type(label) is Label:
        result = op.run()
        watch.made([result])
        watch.put(result, label)
        return result
    if Relative not in kinds:
        if op.facts.is_view:
            return views.carry_out_view(watch, op)
        if op.facts.is_pointwise:
            return views.carry_out_pointwise(watch, op)
    return repeat.carry_out(watch, op)


def _without_rows(watch: CallWatch, op: ObservedOperation, mark: Drawn | None) -> Any:
    result = op.run()
    results = tensors(result)
    if not op.facts.written and not op.facts.is_view:
        watch.made(results)
    if mark is not None:
        for each in op.written or results:
            watch.put(each, mark)
    return result


def _new(watch: CallWatch, op: ObservedOperation) -> Any:
    """Make new memory without rows, except for noise, which has the tensor's rows."""
    result = _without_rows(watch, op, None)
    label = op.marks[0]
    if watch.makes_noise and type(label) is Label:
        watch.label(result, label.order, label.axis)
    return result


def _mixed(watch: CallWatch, op: ObservedOperation, kinds: set[type]) -> Any:
    """Mark results of a mixed operand as mixed; refuse to combine it with rows."""
    how = next(mark for mark in op.marks if type(mark) is Mixed)
    if op.facts.name in _LIKE:
        return _without_rows(watch, op, None)
    if not kinds.isdisjoint((Label, Relative)):
        raise MixesRows(meet(how.how))
    result = op.run()
    results = op.written or tensors(result)
    if not op.facts.written and not op.facts.is_view:
        watch.made(results)
    for each in results:
        watch.overwrite(op, each, how) if op.written else watch.put(each, how)
    return result


def _shape_tells(op: ObservedOperation) -> bool:
    """Return whether the shape of the result depends on values."""
    if torch.Tag.dynamic_output_shape not in op.func.tags:
        return False
    if op.facts.name != "index":
        return True
    return any(mark and operand.dtype in (torch.bool, torch.uint8) for operand, mark in list(op.pairs())[1:])
