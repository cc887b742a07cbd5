"""Analysis of an embedding look-up: rows stay apart, though the host reads ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ronde.patching.torch_internals import DisableTorchFunction
from ronde.rowwise.labels import Label, along
from ronde.rowwise.normalize import require_all
from ronde.rowwise.operation import tensors
from ronde.rowwise.verdict import MixesRows, meet
from ronde.rowwise.watch import Away, CallWatch

__all__ = ["look_up"]


def look_up(watch: CallWatch, name: str, args: Any, run: Callable[[], Any]) -> Any:
    """Carry out a look-up, which may be collective, if no rank has a problem.

    The result has the shape of the ids plus a last dimension.
    """
    with DisableTorchFunction():
        marks = [mark for each in tensors(args) if (mark := watch.rows_of(each)) is not None]
    labels = [mark for mark in marks if isinstance(mark, Label)]
    if len(labels) < len(marks):
        raise MixesRows(meet(name))
    require_all(watch)
    with watch.looking_away(Away.JOINED):
        result = run()
    with watch.looking_away(), DisableTorchFunction():
        watch.made([result])
        for label in labels:
            watch.put(result, along(label.order, label.axis, result.shape))
    return result
