"""Batch axes of an observed call's outputs, and outputs that forbid sharding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ronde.rowwise.labels import Label, address
from ronde.rowwise.rows_int import is_counted
from ronde.rowwise.verdict import MIXES, NO_AXIS, MixesRows
from ronde.rowwise.watch import CallWatch
from ronde.tensor.layout import memory_order
from ronde.tensor.output_axis import OutputAxis
from ronde.tensor.tensor_class import dispatches

__all__ = ["axes_of", "same_as"]

_LOSS = "an output without a batch axis depends on the batch (a loss of its own?) [R331]"
_NUMBER = "a number or text among its outputs depends on the batch (a count of its rows?) [R332]"


def axes_of(watch: CallWatch, results: Sequence[Any]) -> tuple[OutputAxis, ...]:
    """Return the batch axis of each output leaf.

    Raises:
        MixesRows: an output depends on the batch without being rows of it.
    """
    if any(map(dispatches, results)):
        raise MixesRows("its output has a class with a __torch_dispatch__ [R345]")
    if any(map(is_counted, results)):
        raise MixesRows(_NUMBER)
    found = [_axis(watch, result) for result in results]
    if all(axis is None or axis.dim is None for axis in found):
        raise MixesRows(NO_AXIS)
    if None in found:
        raise MixesRows(_LOSS)
    return tuple(axis for axis in found if axis is not None)


def _axis(watch: CallWatch, result: Any) -> OutputAxis | None:
    """Return an output's batch axis; None for a scalar that depends on rows."""
    if not isinstance(result, torch.Tensor):
        return OutputAxis(None)
    mark = watch.rows_of(result)
    if mark is None:
        return OutputAxis(None, dims=result.dim())
    if type(mark) is not Label:
        if result.dim() == 0:
            return None
        raise MixesRows(_described(mark))
    order = mark.order
    if order.repeats is None or 1 not in order.repeats:
        raise MixesRows(MIXES)
    order_in_memory = tuple(memory_order(result))
    return OutputAxis(mark.axis, order.repeats[0] > 1, result.dim(), order_in_memory)


def _described(mark: Any) -> str:
    how = getattr(mark, "how", "")
    return f"{MIXES} ({how})" if how else MIXES


def same_as(results: Sequence[Any], given: Sequence[Any]) -> tuple[int | None, ...]:
    """Return the argument that each output is identical with, or None.

    Raises:
        MixesRows: an output is a view of an argument.
    """
    memories = {address(value) for value in given if isinstance(value, torch.Tensor)}
    found: list[int | None] = []
    for result in results:
        if not isinstance(result, torch.Tensor):
            found.append(None)
            continue
        place = next((place for place, value in enumerate(given) if value is result), None)
        if place is None and address(result) in memories:
            raise MixesRows("it returns a view of its argument, which shares memory with it [R344]")
        found.append(place)
    return tuple(found)
