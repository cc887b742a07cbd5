"""A model's call in pieces of a rank's rows: inputs, draws and joined outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.modules.sharded_call import ShardedCall, another_form
from ronde.tensor.layout import Layout, RowRange
from ronde.tensor.output_axis import OutputAxis
from ronde.tensor.shard import laid, order_in_memory
from ronde.tensor.tensor_class import alike, as_plain
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["RunOn", "form_of", "given_to", "in_pieces", "joined", "rows_of", "run_on"]

RunOn = Callable[[ShardedCall, Sequence[Any]], Any]
"""Runs a call with these leaves as its arguments."""


def run_on(call: ShardedCall, values: Sequence[Any]) -> Any:
    """Run a call with these leaves as its arguments."""
    remaining = iter(values)
    args, kwargs = map_leaves(lambda _: next(remaining), call.given, always=True)
    return call.run(args, kwargs)


def in_pieces(call: ShardedCall, pieces: int) -> Layout:
    """Return the cut of this rank's rows into at most `pieces` pieces.

    All ranks have the same number of pieces, however many rows each has: each look-up of spread rows is a
    collective.
    """
    whole = call.cut
    fewest = min(whole.counts())
    return Layout(0, whole.count(call.context.rank), max(min(pieces, fewest), 1))


def rows_of(call: ShardedCall, cut: Layout, piece: int) -> RowRange:
    """Return the rows of the whole batch in a piece."""
    whole = call.cut
    first, _ = whole.bounds(call.context.rank)
    start, stop = cut.bounds(piece)
    return RowRange(whole.dim, whole.rows, whole.world_size, start=first + start, stop=first + stop)


def given_to(call: ShardedCall, cut: Layout, piece: int) -> list[Any]:
    """Return the leaves of the arguments, batches cut to this piece's rows."""
    known: dict[int, Any] = {}
    values: list[Any] = []
    for value, axis in zip(leaves(call.given), call.verdict.inputs, strict=True):
        if axis is None:
            values.append(value)
            continue
        if id(value) not in known:
            layout = dataclasses.replace(cut, dim=axis, inner=call.batch.inner)
            with as_plain(value):
                rows = layout.take(value, piece)
                # Slices along other axes than the first have gaps in memory, where the model may ask for a
                # view.
                rows = rows if axis == 0 else rows.clone()
            known[id(value)] = alike(rows, value)
        values.append(known[id(value)])
    return values


def joined(call: ShardedCall, form: Any, outputs: list[tuple[Any, ...]], cut: Layout) -> Any:
    """Join the outputs of pieces; `form` is the model's output for one piece."""
    expected = call.verdict.outputs
    if any(len(output) != len(expected) for output in outputs):
        raise another_form(call.module)
    columns = zip(*outputs, strict=True)
    whole = iter([_whole(call, axis, parts, cut) for axis, parts in zip(expected, columns, strict=True)])
    return map_leaves(lambda _: next(whole), form, always=True)


def _whole(call: ShardedCall, axis: OutputAxis, parts: tuple[Any, ...], cut: Layout) -> Any:
    if axis.dim is None:
        return parts[-1]  # the same for every piece
    if any(not isinstance(part, torch.Tensor) or part.dim() != axis.dims for part in parts):
        raise another_form(call.module)
    rows = cut.count(cut.world_size - 1)
    # It has the memory order of a piece with several rows, because the script's draws for it follow memory
    # order.
    order = axis.order if rows == 1 else order_in_memory(parts[-1])
    layout = axis.layout(parts[-1].shape, cut, rows).at(order.index(axis.dim))
    with as_plain(parts[-1]):
        whole = layout.assemble([laid(part, order).permute(order) for part in parts])
        whole = whole.permute([order.index(dim) for dim in range(whole.dim())])
    return alike(whole, parts[-1])


def form_of(given: Sequence[Any]) -> tuple[Any, ...]:
    """Return a key of calls that differ only in the elements of tensors."""
    return tuple(
        (leaf.shape, leaf.dtype, leaf.requires_grad)
        if isinstance(leaf, torch.Tensor)
        else leaf
        if isinstance(leaf, (bool, int, float, str, type(None)))
        else type(leaf)
        for leaf in given
    )
