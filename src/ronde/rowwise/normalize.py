"""Analysis of batch norm: it joins rows, but its result has the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ronde.patching.torch_internals import DisableTorchFunction
from ronde.rowwise.labels import Label, Mixed
from ronde.rowwise.operation import ObservedOperation, tensors
from ronde.rowwise.verdict import MixesRows
from ronde.rowwise.watch import Away, CallWatch

__all__ = ["Elsewhere", "keeps_statistics", "normalize", "require_all"]

_NORMS = {
    *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional"),
    *("cudnn_batch_norm", "miopen_batch_norm"),
    *("_batch_norm_with_update", "_batch_norm_with_update_functional"),
}


def keeps_statistics(op: ObservedOperation) -> bool:
    """Return whether an operation is a plain batch norm that updates running statistics."""
    facts = op.facts
    if facts.name not in _NORMS or not tensors(op.args[3:5]):
        return False
    return "training" not in facts.names or bool(op.given(facts.names.index("training")))


def normalize(watch: CallWatch, value: torch.Tensor, run: Callable[[], Any], *, keeps: bool) -> Any:
    """Carry out a batch norm, which is collective, if no rank has a problem.

    Args:
        keeps: whether it updates running statistics.
    """
    with DisableTorchFunction():
        label = watch.rows_of(value)
    if label is None:
        if keeps:
            raise MixesRows("its batch norm keeps statistics of a tensor without a batch axis [R341]")
        watch.batchless = True
    elif type(label) is not Label or label.axis != 0:
        raise MixesRows("its batch norm is given rows of the batch as channels, or some of them [R341]")
    else:
        watch.joint = True
        require_all(watch)
    with watch.looking_away(Away.JOINED):
        result = run()
    first, *others = tensors(result)
    with DisableTorchFunction():
        watch.made([first, *others])
        if type(label) is Label:
            watch.put(first, label)
            for each in others:
                watch.put(each, Mixed("batch_norm"))
    return result


def require_all(watch: CallWatch) -> None:
    """End the call before a collective if a rank has a problem.

    Raises:
        Elsewhere: another rank has the problem.
    """
    with watch.looking_away():
        problem = watch.ranks.agree("")
    if problem:
        raise Elsewhere(problem)


class Elsewhere(MixesRows):
    """Raised when another rank has a problem, and all ranks know it."""
