"""Batch norm joins the rows of a batch on purpose, with statistics of all ranks: its result has the same
rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.rowwise.labels import Label, Mixed
from ronde.rowwise.operation import Operation, facts_of, tensors
from ronde.rowwise.sequence import NORMS
from ronde.rowwise.verdict import MixesRows
from ronde.rowwise.watch import Away, Watch

__all__ = ["carry_out", "is_norm_of_batch", "normalize"]


def is_norm_of_batch(watch: Watch, op: Operation) -> bool:
    """Whether it is a batch norm in training that ranks carry out together."""
    return (
        op.facts.name in NORMS
        and is_training(op.func, op.args, op.kwargs)
        and watch.ranks.normalizes(op.func)
    )


def is_training(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a batch norm, as an operation of torch, makes statistics of what it is given."""
    facts = facts_of(func)
    if facts.name not in NORMS:
        return False
    if "training" not in facts.names:
        return True
    place = facts.names.index("training")
    return bool(args[place] if place < len(args) else kwargs.get("training"))


def keeps_statistics(op: Operation) -> bool:
    """Whether it is a norm in training that writes to what it is given as running statistics."""
    return op.facts.name in NORMS and bool(_running(op)) and is_training(op.func, op.args, op.kwargs)


def _running(op: Operation) -> list[torch.Tensor]:
    return tensors(op.args[3:5])


def carry_out_alone(watch: Watch, op: Operation) -> Any:
    """A norm for which ranks do not meet, as that of instances, with statistics of what it is given."""
    running = _running(op)
    watch.undo.keep(running, watch.marks)
    result = op.run()
    first, *others = tensors((result,))
    watch.made([first, *others])
    if any(watch.rows_of(each) is not None for each in tensors(op.args[:3])):
        for each in (first, *others, *running):
            watch.put(each, Mixed(op.facts.name))
    return result


def carry_out(watch: Watch, op: Operation) -> Any:
    """As one operation of torch."""
    running = _running(op)
    watch.undo.keep(running, watch.marks)
    return normalize(watch, op.args[0], running, op.run)


def normalize(
    watch: Watch, value: torch.Tensor, running: Sequence[torch.Tensor], run: Callable[[], Any]
) -> Any:
    """Carry out a batch norm for which ranks meet, if none of them has a problem.

    Args:
        running: the statistics that it keeps.
    """
    with torch._C.DisableTorchFunction():
        label = watch.rows_of(value)
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
    with torch._C.DisableTorchFunction():
        watch.made([first, *others])
        if type(label) is Label:
            watch.put(first, label)
            for each in others:
                watch.put(each, Mixed("batch_norm"))
    return result


class Elsewhere(MixesRows):
    """Another rank has a problem, of which all know."""
