"""Outputs of a model as global tensors with all rows on one stage.

So the script's own functions have the rules of any value that is cut along rows: a loss is a sum and a count,
of which ranks exchange a number, and its gradient arrives on the stage that needs it. An operation without a
rule gathers the whole value on all ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, final

import torch

from ronde.comm.process_group import Comm
from ronde.modules.sharded_call import ShardedCall, another_form
from ronde.parallel.context.sequences import Sequences
from ronde.parallel.pipeline.remote_tensors import AbsentTensor
from ronde.parallel.pipeline.route import Route
from ronde.tensor import rules
from ronde.tensor.context import Context
from ronde.tensor.global_tensor import GlobalTensor, gathered, is_global, wrap
from ronde.tensor.layout import Layout
from ronde.tensor.rules.common import rewrap
from ronde.tensor.shard import innermost_rows
from ronde.tensor.tree import leaves

__all__ = ["Returned", "StageOutputs", "returned"]


@dataclasses.dataclass(frozen=True, slots=True)
class Returned:
    """Tensor of an output that one stage has computed.

    Attributes:
        place: index among the tensors of the output.
        tensor: the tensor, without elements on other ranks.
        source: rank in the pipeline that has it.
        gradient: whether it has a gradient.
        axis: batch dimension; None where it does not depend on the batch.
    """

    place: int
    tensor: torch.Tensor
    source: int
    gradient: bool
    axis: int | None

    @property
    def stays(self) -> bool:
        return self.axis is not None


def returned(call: ShardedCall, output: Any, route: Route) -> Iterator[Returned]:
    """Yield the tensors of an output that not all ranks have computed.

    Raises:
        RondeError: the output has another form than in the model's first call.
    """
    made, expected = list(leaves(output)), call.verdict.outputs
    tensors = [
        (leaf, axis)
        for leaf, axis in zip(made, expected, strict=False)
        if isinstance(leaf, torch.Tensor) and axis.dims == leaf.dim()
    ]
    if len(made) != len(expected) or len(tensors) != len(route.sources):
        raise another_form(call.module)
    for place, ((leaf, axis), source) in enumerate(zip(tensors, route.sources, strict=True)):
        if source >= 0:
            yield Returned(place, leaf, source, route.gradients[place], axis.dim)


@final
class StageOutputs:
    """Creates global tensors of stages' outputs; one per session.

    Args:
        comm: group of a pipeline's ranks, for the script's collectives on outputs.
        sequences: executor that cuts the sequences of each stage; None where they are whole.
    """

    def __init__(self, comm: Comm, sequences: Sequences | None) -> None:
        self._sequences = sequences
        self._context = Context.within_rows(comm, None if sequences is None else sequences.context)
        self._rules = rules.table()

    def own(self, found: Returned, device: torch.device) -> torch.Tensor:
        """Return this rank's part of a tensor that stays, or memory for another."""
        if found.source == self._context.rank:
            return innermost_rows(found.tensor)
        shape = AbsentTensor.of(found.tensor)
        if found.axis is None:
            return shape.room(device)
        sizes = [0 if dim == found.axis else size for dim, size in enumerate(shape.shape)]
        return torch.empty(sizes, dtype=shape.dtype, device=device)

    def over(self, found: Returned, own: torch.Tensor) -> torch.Tensor:
        """Return the global tensor with `own` on this rank."""
        shape = AbsentTensor.of(found.tensor)
        if found.axis is not None:
            rows, ranks = shape.shape[found.axis], self._context.world_size
            layout = Layout(found.axis, rows, ranks, owner=found.source)
            own = wrap(self._context, own, layout, self._rules)
        return own if self._sequences is None or shape.cut is None else self._sequences.over(own, shape.cut)

    def everywhere(self, value: Any) -> Any:
        """Gather a value over the ranks of the pipeline."""
        if is_global(value, self._context):
            return gathered(value)
        if isinstance(value, GlobalTensor) and is_global(value._local, self._context):
            return rewrap(value, gathered(value._local), value._layout)
        return value
