"""The elements of parameters and gradients that this rank's optimizer step updates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch

from ronde.comm.process_group import Comm
from ronde.shards.flat import flat_like
from ronde.shards.partition import Partition
from ronde.shards.spec import ShardSpec, Span, within
from ronde.sync.gradient_shards import GradientShards
from ronde.sync.memory_home import Home
from ronde.sync.sparse_rows import cut_rows

__all__ = ["ROW_OPTIMIZERS", "OptimizerShards", "ParameterShards", "Replicas", "updates_rows"]

ROW_OPTIMIZERS: tuple[type[torch.optim.Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.SparseAdam,
    torch.optim.Adagrad,
)
"""torch's own that take sparse gradients, and update each row by itself."""


def updates_rows(optimizer: Any) -> bool:
    """Return whether an optimizer updates row by row, with a dense state.

    With momentum SGD keeps a sparse state, of all rows that ever had a gradient.
    """
    return (
        type(optimizer) in ROW_OPTIMIZERS
        and not optimizer.defaults.get("differentiable", False)
        and all(group.get("momentum", 0) == 0 for group in optimizer.param_groups)
    )


class ParameterShards(Protocol):
    """Shards of parameters that optimizers update."""

    def own(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return this rank's elements of a parameter, flat; None for a whole one."""
        ...

    def span(self, tensor: torch.Tensor) -> Span:
        """Return the first of this rank's elements, and the one after the last."""
        ...

    def begin_update(self) -> None:
        """Prepare for an update of shards. A collective."""
        ...

    def end_update(self, tensors: Iterable[torch.Tensor]) -> None:
        """Complete an update of these parameters' shards. A collective."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Replicas:
    """The ranks that have the same block of each parameter as this one.

    Attributes:
        comm: their group.
        ranks: their places in the group of the optimizer's partition, in the order of `comm`.
        blocks: shards of blocks, of which each of these ranks has all elements.
        have: function that returns whether these ranks have the same block of a parameter.
    """

    comm: Comm
    ranks: Sequence[int]
    blocks: ParameterShards
    have: Callable[[torch.Tensor], bool]


class OptimizerShards:
    """Partition of optimizer steps, with shards of parameters and gradients.

    The elements of an update are within this rank's shards of parameter and gradient: equal to them under
    ZeRO, and a run of them where replicas of a block share its update.

    Args:
        partition: the elements that each rank updates.
        rank: index of this rank in the group of the partition.
        gradients: shards of gradients; None where every rank has all of each.
        parameters: shards of parameters; None where every rank has all of each.
        whole_too: parameters that are not shards are cut for their update too.
        replicas: groups of ranks that share their updated elements; empty where shards are updated whole.

    Attributes:
        home: placement of this rank's part of an optimizer's state, and of its step.
    """

    def __init__(
        self,
        partition: Partition,
        rank: int,
        home: Home,
        gradients: GradientShards | None = None,
        parameters: ParameterShards | None = None,
        *,
        whole_too: bool = True,
        replicas: Sequence[Replicas] = (),
    ) -> None:
        self.home = home
        self._partition = partition
        self._rank = rank
        self._gradients = gradients
        self._parameters = parameters
        self._whole_too = whole_too
        self._replicas = replicas

    def divide(self, tensors: Sequence[torch.Tensor]) -> list[ShardSpec | None]:
        """The spec of each tensor's update; None for one that every rank updates whole."""
        if self._whole_too:
            return self._partition.assign(tensors)
        return [self._partition.spec(each) if self._is_shard(each) else None for each in tensors]

    def part(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return this rank's elements of a sharded parameter, flat or rows [n, dim].

        None for a whole parameter.
        """
        shard = None if self._parameters is None else self._parameters.own(tensor)
        spec = None if shard is None else self._partition.spec(tensor)
        if shard is None or spec is None or self._parameters is None:
            return shard
        own = shard[within(spec[self._rank], self._parameters.span(tensor))]
        return own if spec.row is None else own.view(-1, spec.row)

    def has_gradient(self, tensor: torch.Tensor) -> bool:
        if self._gradients is not None and tensor in self._gradients:
            return True
        return tensor.grad is not None

    def fits(self, tensor: torch.Tensor) -> bool:
        """Return whether the gradient, if any, can be cut as the update is."""
        if not self._whole_too and not self._is_shard(tensor):
            return False
        if self._gradients is not None and tensor in self._gradients:
            return True
        gradient = tensor.grad
        if gradient is None or (gradient.layout is torch.strided and gradient.dtype is tensor.dtype):
            return True
        spec = self._partition.spec(tensor)
        return spec is not None and spec.row is not None

    def stands(self, tensor: torch.Tensor, spec: ShardSpec) -> bool:
        """Return whether an update that was cut by this spec can still be."""
        return self.fits(tensor) and self._partition.spec(tensor) == spec

    def agree(self, tensor: torch.Tensor, spec: ShardSpec) -> None:
        """Make the gradient's shards contain the update's, or make it whole. A collective."""
        if self._gradients is not None:
            self._gradients.agree(tensor, spec)

    def gradient_beside(self, tensor: torch.Tensor, spec: ShardSpec) -> list[torch.Tensor]:
        """Return this rank's elements of the gradient before and after the update's."""
        own = spec[self._rank] or (0, 0)
        found = None if self._gradients is None else self._gradients.held(tensor)
        if found is not None:
            if found.part is None or found.part.layout is not torch.strided:
                return []
            place = within(own, found.span)
            return [found.part[: place.start], found.part[place.stop :]]
        gradient = tensor.grad
        if gradient is None:
            return []
        elements = flat_like(gradient, tensor)
        if elements.data_ptr() != gradient.data_ptr():
            return [gradient]  # `own_gradient` returns a copy
        return [elements[: own[0]], elements[own[1] :]]

    def own_gradient(self, tensor: torch.Tensor, spec: ShardSpec) -> torch.Tensor:
        """Return the elements of a gradient that this rank's update by a spec needs."""
        found = None if self._gradients is None else self._gradients.held(tensor)
        own = spec[self._rank] or (0, 0)
        if found is not None and found.part is not None:
            return found.part if spec.row is not None else found.part[within(own, found.span)]
        gradient = tensor.grad
        assert gradient is not None
        if spec.row is not None:
            return cut_rows(gradient, own[0] // spec.row, own[1] // spec.row)
        return flat_like(gradient, tensor)[slice(*own)]

    def begin_update(self) -> None:
        if self._parameters is not None:
            self._parameters.begin_update()

    def end_update(self, tensors: Sequence[torch.Tensor]) -> None:
        """Share the updated elements among replicas. A collective."""
        if self._parameters is None:
            return
        for replicas in self._replicas:
            self._share(replicas, [each for each in tensors if replicas.have(each)])
        self._parameters.end_update(tensors)

    def _share(self, replicas: Replicas, tensors: Sequence[torch.Tensor]) -> None:
        found = [(each, replicas.blocks.own(each), self._partition.spec(each)) for each in tensors]
        blocks = [
            (shard, spec, replicas.blocks.span(each))
            for each, shard, spec in found
            if shard is not None and spec is not None
        ]
        replicas.comm.share(
            [[shard[within(spec[rank], span)] for shard, spec, span in blocks] for rank in replicas.ranks]
        )

    def _is_shard(self, tensor: torch.Tensor) -> bool:
        return self._parameters is not None and self._parameters.own(tensor) is not None
