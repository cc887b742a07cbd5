"""Looks at each operation of an observed call, and has it carried out."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ronde.boundary.by_parts import carry_out as by_parts
from ronde.boundary.by_parts import is_made_of_others
from ronde.boundary.randomness.draws import is_random
from ronde.rowwise import draws, normalize, repeat, views
from ronde.rowwise.checks import only_checks
from ronde.rowwise.labels import Drawn, Label, Mixed, Relative
from ronde.rowwise.mixes_rows import HOST_READ, MixesRows, changes, keeps, meet
from ronde.rowwise.operation import Operation, tensors
from ronde.rowwise.watch import Away, Watch

__all__ = ["Observer"]

_READS = {"_local_scalar_dense", "is_nonzero", "equal", "item"}
_LIKE = {"zeros_like", "ones_like", "full_like", "empty_like"}


class Observer(TorchDispatchMode):
    """Has each operation carried out, and its results marked."""

    supports_higher_order_operators = True

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_made_of_others(func):
            return by_parts(self, func, args, kwargs)
        if isinstance(func, HigherOrderOperator):
            raise MixesRows(meet(str(func)))
        with torch._C.DisableTorchFunction():
            try:
                return self._carried_out(func, args, kwargs)
            except MixesRows as found:
                self._watch.counts.problem = self._watch.counts.problem or str(found)
                raise

    def _carried_out(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        watch = self._watch
        if watch.away:
            op = Operation(func, args, kwargs, watch.of)
            if watch.away is not Away.TRIED:
                self._note(op)
            if watch.trial is None:
                return op.run()
            watch.trial.see(op)
            result = op.run()
            watch.trial.seen(op, result)
            return result
        op = Operation(func, args, kwargs, watch.of)
        _check_operands(watch, op)
        _check_words(op)
        if op.facts.written:
            _check_writes(watch, op)
        return _carry_out(watch, op)

    def _note(self, op: Operation) -> None:
        """It is a part of a function that is looked at as one."""
        watch = self._watch
        watch.undo.keep(op.written, watch.marks)
        if watch.away is not Away.NOTED:
            return
        _check_words(op)
        for target in op.written:
            name = watch.undo.name_of(target)
            if name is not None and not watch.marks.is_new(target):
                raise MixesRows(keeps(name))

    def seen(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """An operation was carried out without being handed over: a recurrent layer."""
        watch = self._watch
        if watch.away:
            return
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            op = Operation(func, args, kwargs, watch.of)
            _check_operands(watch, op)
            kinds = {type(mark) for mark in op.marks} - {type(None), Drawn}
            if Mixed in kinds or Relative in kinds:
                raise MixesRows(meet(op.facts.name))
            if kinds:
                repeat.mark_results(watch, op, result, repeat.learn(watch, op))


def _check_words(op: Operation) -> None:
    names = op.facts.names
    if op.facts.name in ("embedding", "_embedding_bag") and op.given(names.index("scale_grad_by_freq")):
        raise MixesRows("its backward counts how often a word is in the batch (scale_grad_by_freq=True)")


def _check_operands(watch: Watch, op: Operation) -> None:
    """Values with a gradient that come from elsewhere."""
    for operand, mark in op.pairs():
        if mark is not None or not operand.requires_grad:
            continue
        if watch.marks.is_new(operand) or watch.undo.is_own(operand):
            continue
        if operand.grad_fn is not None and operand.grad_fn._sequence_nr() < watch.began:
            raise MixesRows("it uses a value with a gradient that was computed outside of it")
        watch.foreign = watch.foreign or operand.is_leaf


def _check_writes(watch: Watch, op: Operation) -> None:
    """Whether what an operation changes may be changed: what is new, or without rows the module's own."""
    written, name = op.written, op.facts.name
    rows = any(mark is not None and type(mark) is not Drawn for mark in op.marks)
    for target in written:
        if watch.undo.is_given(target):
            raise MixesRows(changes("its argument", name))
        if watch.marks.is_new(target):
            continue
        held = watch.undo.name_of(target)
        if held is not None and watch.undo.is_parameter(target):
            raise MixesRows(changes(f"its parameter {held}", name))
        if held is None and rows:
            raise MixesRows(changes("a tensor that is none of its own", name))
        if rows:
            raise MixesRows(keeps(held or ""))
    watch.undo.keep(written, watch.marks)


def _carry_out(watch: Watch, op: Operation) -> Any:
    kinds = {type(mark) for mark in op.marks}
    kinds.discard(type(None))
    name = op.facts.name
    if _draws(op):
        return draws.carry_out(watch, op)
    if normalize.is_norm_of_batch(watch, op):
        return normalize.carry_out(watch, op)
    if not kinds:
        return _without_rows(watch, op, None)
    if kinds == {Drawn}:
        if name in _READS or torch.Tag.dynamic_output_shape in op.func.tags:
            raise MixesRows("its forward reads a random draw on the host")
        return _without_rows(watch, op, Drawn())
    if name in _READS or _shape_tells(op):
        if name in _READS and (watch.checking or only_checks()):
            return op.run()
        raise MixesRows(HOST_READ)
    if name.startswith("new_"):
        return _new(watch, op)
    if Mixed in kinds:
        return _mixed(watch, op, kinds)
    return _of_rows(watch, op, kinds)


def _draws(op: Operation) -> bool:
    """Whether this call draws; a recurrent layer does so with dropout only."""
    names = op.facts.names
    if "dropout" in names and not op.given(names.index("dropout")):
        return False
    return is_random(op.func, op.args, op.kwargs)


def _of_rows(watch: Watch, op: Operation, kinds: set[type]) -> Any:
    name = op.facts.name
    label = op.mark(op.args[0]) if op.args and isinstance(op.args[0], torch.Tensor) else None
    if name in _LIKE and type(label) is Label:
        result = op.run()
        watch.made([result])
        watch.put(result, label)
        return result
    if Relative not in kinds:
        if _is_view(op):
            return views.carry_out_view(watch, op)
        if op.facts.is_pointwise:
            return views.carry_out_pointwise(watch, op)
    return repeat.carry_out(watch, op)


def _without_rows(watch: Watch, op: Operation, mark: Drawn | None) -> Any:
    result = op.run()
    results = tensors((result,))
    if not op.facts.written and not _is_view(op):
        watch.made(results)
    if mark is not None:
        for each in op.written or results:
            watch.put(each, mark)
    return result


def _new(watch: Watch, op: Operation) -> Any:
    """Memory that has nothing of the tensor that is asked for it, but for noise, which has its rows."""
    result = _without_rows(watch, op, None)
    label = op.marks[0]
    if watch.makes_noise and type(label) is Label and label.order is not None:
        watch.label(result, label.order, label.axis)
    return result


def _mixed(watch: Watch, op: Operation, kinds: set[type]) -> Any:
    """What is made of something that several rows have made is so, too; a row must not be."""
    how = next(mark for mark in op.marks if type(mark) is Mixed)
    if op.facts.name in _LIKE:
        return _without_rows(watch, op, None)
    if not kinds.isdisjoint((Label, Relative)):
        raise MixesRows(meet(how.how))
    result = op.run()
    results = op.written or tensors((result,))
    if not op.facts.written and not _is_view(op):
        watch.made(results)
    for each in results:
        watch.overwrite(op, each, how) if op.written else watch.put(each, how)
    return result


def _is_view(op: Operation) -> bool:
    return op.facts.is_view or op.facts.name in views.LIKE_VIEWS


def _shape_tells(op: Operation) -> bool:
    """Whether the shape of its result tells of values."""
    if torch.Tag.dynamic_output_shape not in op.func.tags:
        return False
    if op.facts.name != "index":
        return True
    return any(mark and operand.dtype in (torch.bool, torch.uint8) for operand, mark in list(op.pairs())[1:])
