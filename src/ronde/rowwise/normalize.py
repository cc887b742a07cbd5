"""Batch norm joins the rows of a batch on purpose, with statistics of all ranks: its result has the same
rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.rowwise.labels import Label, Mixed
from ronde.rowwise.mixes_rows import MixesRows
from ronde.rowwise.operation import Operation, tensors
from ronde.rowwise.watch import Away, Watch

__all__ = ["carry_out", "is_norm_of_batch", "normalize"]


_NORMS = {
    *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional"),
    *("cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_with_update"),
    "_batch_norm_with_update_functional",
}


def is_norm_of_batch(watch: Watch, op: Operation) -> bool:
    """Whether it is a batch norm in training that ranks carry out together."""
    if op.facts.name not in _NORMS or not watch.ranks.normalizes(op.func):
        return False
    names = op.facts.names
    return "training" not in names or bool(op.given(names.index("training")))


def carry_out(watch: Watch, op: Operation) -> Any:
    """As one operation of torch."""
    running = [value for value in op.args[3:5] if isinstance(value, torch.Tensor)]
    watch.undo.keep(running, watch.marks)
    return normalize(watch, op.args[0], running, op.run)


def normalize(
    watch: Watch, value: torch.Tensor, running: Sequence[torch.Tensor], run: Callable[[], Any]
) -> Any:
    """Carry out a batch norm for which ranks meet, if none of them has a problem.

    Args:
        running: the statistics that it keeps.
    """
    label = watch.of(value)
    if label is None:
        if running:
            raise MixesRows("its batch norm keeps statistics of something that has no batch axis")
        watch.batchless = True
    elif type(label) is not Label or label.order is None or label.axis != 0 or not label.order.is_even:
        raise MixesRows("its batch norm is given rows of the batch as channels, or some of them")
    else:
        watch.joint = True
        if problem := watch.ranks.agree(""):
            raise Elsewhere(problem)
    with watch.looking_away(Away.JOINED):
        result = run()
    first, *others = tensors((result,))
    watch.made([first, *others])
    if type(label) is Label:
        watch.put(first, label)
        for each in others:
            watch.put(each, Mixed("batch_norm"))
    return result


class Elsewhere(MixesRows):
    """Another rank has a problem, of which all know."""
