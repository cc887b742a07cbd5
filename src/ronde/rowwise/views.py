"""Operations with known effect on rows: views, reshapes and pointwise operations."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from ronde.rowwise.labels import Label, Mark, Mixed, along, labelled
from ronde.rowwise.operation import ObservedOperation, tensors
from ronde.rowwise.rows_int import Branch
from ronde.rowwise.verdict import MixesRows, meet
from ronde.rowwise.watch import CallWatch

__all__ = ["carry_out_pointwise", "carry_out_view", "is_constant_along"]

_RESHAPES = {"view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy"}
_TAKES = {"slice", "split", "narrow", "unsafe_split"}
_AS_IT_IS = {"alias", "detach", "lift_fresh", "_conj", "_neg_view", "conj"}


def carry_out_view(watch: CallWatch, op: ObservedOperation) -> Any:
    """Run a view or reshape, and apply it to the entries' row numbers."""
    label = op.labels[0]
    _check_places(watch, op, label)
    if op.facts.name == "squeeze":
        _note_squeeze(watch, op, label)
    result = op.run()
    for each, ids in zip(tensors(result), _ids(op, label, result), strict=True):
        made = label if ids is label.ids else labelled(ids, watch.orders, label)
        if made is None and each.numel():
            raise MixesRows(meet(op.facts.name))
        if made is not None and op.facts.name == "as_strided":
            made = along(made.order, made.axis, each.shape)  # expanded again, to save memory
        watch.put(each, made)
    return result


def _check_places(watch: CallWatch, op: ObservedOperation, label: Label) -> None:
    """Refuse row ranges by number, as they may differ for the whole batch."""
    name = op.facts.name
    if name not in _TAKES:
        return
    place = op.facts.names.index("dim")
    dim = op.given(place) if op.given(place) is not None else 0
    if dim % len(label.ids.shape) != label.axis:
        return
    whole = len(label.order) // watch.counts.mine * watch.counts.whole
    bounds = [each for each in op.facts.names if each in ("end", "split_size", "length")]
    for bound in bounds:
        number = op.given(op.facts.names.index(bound))
        if not isinstance(number, int) or number in watch.counted or number >= whole:
            continue
        # Concatenated copies of the batch may be split again.
        if number == len(label.order) or number % watch.counts.mine:
            raise MixesRows(meet(name))


def _note_squeeze(watch: CallWatch, op: ObservedOperation, label: Label) -> None:
    """Record the branch that a single row would lose its axis."""
    dims = op.args[1] if len(op.args) > 1 else label.axis
    dims = [dims] if isinstance(dims, int) else dims
    if any(dim % label.ids.dim() == label.axis for dim in dims):
        times = len(label.order) // watch.counts.mine
        watch.counts.branches.append(Branch(operator.eq, lambda rows: rows * times, lambda _: 1))


def _ids(op: ObservedOperation, label: Label, result: Any) -> Sequence[torch.Tensor]:
    name = op.facts.name
    if name in _AS_IT_IS:
        return [label.ids]
    if name == "view_as_real":
        return [label.ids.unsqueeze(-1).expand(result.shape)]
    if name in ("view_as_complex", "real", "imag"):
        return [label.ids[..., 0] if name == "view_as_complex" else label.ids]
    if name == "view" and isinstance(op.args[1], torch.dtype):
        if label.ids.shape != result.shape:
            raise MixesRows(meet("view"))
        return [label.ids]
    if name in _RESHAPES:
        return [reshaped(label, result.shape)]
    if name == "as_strided":
        return [_strided(op, label)]
    return tensors(op.func(label.ids, *op.args[1:], **op.kwargs))


def _strided(op: ObservedOperation, label: Label) -> torch.Tensor:
    """Return the row numbers of possibly overlapping strided pieces, as in an STFT."""
    tensor, size, stride = op.args[:3]
    offset = op.args[3] if len(op.args) > 3 else None
    ids = torch.empty_strided(tensor.shape, tensor.stride(), dtype=label.ids.dtype).copy_(label.ids)
    return ids.as_strided(size, stride, 0 if offset is None else offset - tensor.storage_offset())


def reshaped(label: Label, shape: Sequence[int]) -> torch.Tensor:
    """Return row numbers in another shape; only dimensions merged with rows take memory."""
    before = label.ids.shape
    outer, inner = math.prod(before[: label.axis]), math.prod(before[label.axis + 1 :])
    start, ends = _span(shape, outer, len(label.order), inner)
    if start is None:
        return label.ids.reshape(tuple(shape))
    middle = shape[start:ends]
    left = outer // math.prod(shape[:start])
    right = math.prod(middle) // (left * len(label.order))
    ids = label.order.rows.view(1, -1, 1).expand(left, -1, right).reshape(tuple(middle))
    places = [1] * start + list(middle) + [1] * (len(shape) - ends)
    return ids.view(places).expand(tuple(shape))


def _span(shape: Sequence[int], outer: int, rows: int, inner: int) -> tuple[int | None, int]:
    """Return the range of dimensions into which the rows' dimension is merged."""
    if not outer * rows * inner:
        return None, 0
    start, before = 0, 1
    while start < len(shape) and outer % (before * shape[start]) == 0 and before * shape[start] <= outer:
        if before == outer and shape[start] != 1:
            break
        before *= shape[start]
        start += 1
    ends, behind = len(shape), 1
    while ends > start and inner % (behind * shape[ends - 1]) == 0 and behind * shape[ends - 1] <= inner:
        behind *= shape[ends - 1]
        ends -= 1
    return (start, ends) if ends > start else (None, 0)


def carry_out_pointwise(watch: CallWatch, op: ObservedOperation) -> Any:
    """Run a pointwise operation. Each entry must depend on one row only."""
    result = op.run()
    results = tensors(result) if not op.written else op.written
    shape = results[0].shape
    label = broadcast(op, shape)
    if not op.written:
        watch.made(results)
    for each in results:
        fits = label is not None and each.shape == shape
        mark: Mark = label if label is not None and fits else Mixed(op.facts.name)
        watch.overwrite(op, each, mark) if op.written else watch.put(each, mark)
    return result


def broadcast(op: ObservedOperation, shape: Sequence[int]) -> Label | None:
    """Return the label of a result of this shape; None if rows mix."""
    labels = op.labels
    first = labels[0]
    behind = first.ids.dim() - first.axis
    for label in labels:
        if label.order is not first.order or label.ids.dim() - label.axis != behind:
            return None
    axis = len(shape) - behind
    if not _fit(op, shape, axis):
        return None
    return Label(first.ids.expand(tuple(shape)), axis, first.order)


def _fit(op: ObservedOperation, shape: Sequence[int], axis: int) -> bool:
    """Return whether operands without rows are constant along the axis of rows."""
    for operand, mark in op.pairs():
        if type(mark) is Label or operand.dim() == 0 or not _is_read(op, operand):
            continue
        place = axis - (len(shape) - operand.dim())
        if place >= 0 and operand.shape[place] != 1 and not is_constant_along(operand, place):
            return False
    return True


def _is_read(op: ObservedOperation, operand: torch.Tensor) -> bool:
    """Return whether an operand is read, not only written to."""
    only_written = op.args[0] if op.facts.name == "copy_" else op.kwargs.get("out")
    return operand is not only_written


def is_constant_along(tensor: torch.Tensor, dim: int) -> bool:
    first = tensor.narrow(dim, 0, 1).expand_as(tensor)
    return torch.equal(first, tensor) or bool(((first == tensor) | (first != first)).all())
