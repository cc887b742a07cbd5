"""Random operations: drawn as on one device, then cut to this rank's rows."""

from __future__ import annotations

from typing import Any

from ronde.rng.draws import Draw, UnknownDraw, drawn_dims
from ronde.rowwise.labels import Drawn, Label, Order, along
from ronde.rowwise.operation import ObservedOperation, tensors
from ronde.rowwise.verdict import MixesRows
from ronde.rowwise.watch import CallWatch
from ronde.tensor.layout import memory_order

__all__ = ["carry_out"]

# Operations that draw for each entry, or each row, of their first operand.
_OF_FIRST = {
    *("native_dropout", "_fused_dropout", "bernoulli", "multinomial", "rand_like"),
    *("randn_like", "randint_like", "bernoulli_", "uniform_", "normal_", "exponential_", "random_"),
    *("geometric_", "cauchy_", "log_normal_", "normal", "poisson", "binomial"),
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
    *("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu"),
}


def carry_out(watch: CallWatch, op: ObservedOperation) -> Any:
    if op.kwargs.get("generator") is not None:
        raise _cannot_be_cut(f"{op.facts.name} with a separate generator [R349]")
    sized, watch.drawn = watch.drawn, None
    if op.labels:
        return _of_rows(watch, op)
    if any(op.marks) and not all(type(mark) is Drawn for mark in op.marks if mark):
        raise _cannot_be_cut(op.facts.name)
    if sized is None:
        result = _without_rows(watch, op)
        if not op.written:
            watch.made(tensors(result))
        for each in op.written or tensors(result):
            watch.put(each, Drawn())
        return result
    axis, order = sized
    result = _drawn(watch, op, order, axis, len(_size(op)))
    watch.made([result])
    watch.label(result, order, axis)
    return result


def _without_rows(watch: CallWatch, op: ObservedOperation) -> Any:
    """Carry out a draw that is independent of rows, equally on all ranks."""
    try:
        dims = drawn_dims(op.facts.name, op.args)
    except UnknownDraw:
        raise _cannot_be_cut(op.facts.name) from None
    draw = Draw(op.facts.name, dims, None)
    watch.draws.append(draw)
    return watch.ranks.draw(op.func, op.args, op.kwargs, draw)


def _size(op: ObservedOperation) -> Any:
    return next(op.given(place) for place, name in enumerate(op.facts.names) if name == "size")


def _of_rows(watch: CallWatch, op: ObservedOperation) -> Any:
    drawn, label = next((operand, mark) for operand, mark in op.pairs() if type(mark) is Label)
    others = [each for each in op.labels if each.order is not label.order]
    written = op.written
    if op.facts.name not in _OF_FIRST or others or (written and drawn is not written[0]):
        raise _cannot_be_cut(op.facts.name)
    result = _drawn(watch, op, label.order, label.axis, drawn.dim(), tuple(memory_order(drawn)))
    for each in written or tensors(result):
        if not written:
            watch.made([each])
        if each.dim() > label.axis and each.shape[label.axis] == len(label.order):
            watch.put(each, along(label.order, label.axis, each.shape))
    return result


def _drawn(
    watch: CallWatch, op: ObservedOperation, order: Order, axis: int, dims: int, memory: tuple[int, ...] = ()
) -> Any:
    if order.repeats is None or 1 not in order.repeats:
        raise _cannot_be_cut(op.facts.name)
    draw = Draw(op.facts.name, dims, axis, order.repeats[0] > 1, memory)
    watch.draws.append(draw)
    return watch.ranks.draw(op.func, op.args, op.kwargs, draw)


def _cannot_be_cut(what: str) -> MixesRows:
    return MixesRows(f"its random draws cannot be cut ({what}) [R349]")
