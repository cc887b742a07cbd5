"""Replacement of parameters by global tensors of a tensor group, during calls.

Modules hold global tensors with this rank's blocks in place of their parameters. An operation on a block has
a rule, or gathers; so a model computes as on one device, whatever it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ronde.errors import UsageError
from ronde.parallel.tensor.rules import tensor_rules
from ronde.parallel.tensor.sequence_parallel import TokenSharding
from ronde.plan.mesh import SequenceParallel
from ronde.shards.block_gradients import BlockGradients, ParameterBlock
from ronde.tensor.context import Context
from ronde.tensor.edges import Gather
from ronde.tensor.global_tensor import GlobalTensor, gathered, is_global, wrap
from ronde.tensor.rules.common import rewrap
from ronde.tensor.tree import map_leaves

__all__ = ["StandIns"]


class StandIns:
    """Puts blocks into modules.

    Args:
        context: context of the tensor group.
        way: form of sequence parallelism between products of blocks.
        gradients: store of the blocks.
        own: function that returns this rank's current elements of a parameter, flat; None for a whole one.

    Attributes:
        comm: process group of the tensor group.
    """

    def __init__(
        self,
        context: Context,
        way: SequenceParallel,
        gradients: BlockGradients,
        own: Callable[[torch.Tensor], torch.Tensor | None],
    ) -> None:
        self._context, self.comm = context, context.comm
        self._tokens = TokenSharding(way)
        self._rules = tensor_rules(self._tokens)
        self._gradients = gradients
        self._own = own

    @contextmanager
    def inside(self, models: Sequence[nn.Module]) -> Iterator[None]:
        """Replace parameters of models by blocks inside the `with` block."""
        swapped: list[tuple[dict[str, Any], str, Any, str]] = []
        known: dict[int, GlobalTensor] = {}
        try:
            for part in (part for model in models for part in model.modules()):
                for name, parameter in part._parameters.items():
                    if parameter is None or isinstance(parameter, GlobalTensor):
                        continue
                    stand_in = known.get(id(parameter))
                    stand_in = self.of(parameter) if stand_in is None else stand_in
                    if stand_in is not None:
                        known[id(parameter)] = stand_in
                        swapped.append((part._parameters, name, parameter, type(part).__name__))
                        part._parameters[name] = stand_in  # pyright: ignore[reportArgumentType]
            yield
        finally:
            self._tokens.forget()
            for members, name, parameter, _ in swapped:
                if isinstance(members.get(name), GlobalTensor):
                    members[name] = parameter
        for _, name, parameter, kind in swapped:
            if known[id(parameter)]._local is None:
                raise UsageError(
                    f"the forward of {kind} writes into its parameter {name}, of which tensor=N gives each "
                    f'rank a block; write {name} = "replicated" into [tensor-cuts] of a plan file to have '
                    f"it whole [R227]"
                )

    def of(self, parameter: torch.Tensor) -> GlobalTensor | None:
        """Return a parameter's replacement; None without a block on this rank."""
        block = self._gradients.block(parameter)
        if block is None:
            return None
        if self._own(parameter) is not block.part:
            return None
        leaf = self._gradients.demand(block, gradient=parameter.requires_grad)
        return self.over(block, leaf) if self._cuts(block) and leaf.numel() else None

    def _cuts(self, block: ParameterBlock) -> bool:
        """Return whether this group's ranks have the blocks.

        An expert is cut over more ranks than this group.
        """
        return block.spec.cut is not None and block.spec.cut.ranks == self._context.world_size

    def over(self, block: ParameterBlock, leaf: torch.Tensor) -> GlobalTensor:
        """Create the global tensor of a parameter that is cut along a dimension.

        Args:
            leaf: elements of this rank's block.
        """
        assert block.spec.cut is not None
        return wrap(self._context, leaf, block.spec.cut.layout(block.parameter.shape), self._rules)

    def gathered(self, block: ParameterBlock, part: torch.Tensor) -> Any:
        """Gather blocks of all ranks, differentiably.

        Args:
            part: tensor with the shape of this rank's block, which is cut along a dimension.
        """
        assert block.spec.cut is not None
        return Gather.apply(part, self._context, block.spec.cut.layout(block.parameter.shape))

    def whole(self, output: Any) -> Any:
        """Gather the leaves of a stage's output over the ranks of the group."""
        self._tokens.forget()
        return map_leaves(self._whole, output)

    def _whole(self, value: Any) -> Any:
        if is_global(value, self._context):
            return gathered(value)
        if isinstance(value, GlobalTensor) and is_global(value._local, self._context):
            return rewrap(value, self._whole(value._local), value._layout)
        return value

    def blocks(self, tensors: list[Any]) -> list[tuple[int, ParameterBlock]]:
        """Return the tensors that have blocks, as pairs of index and block."""
        found = [(place, self._gradients.block(each)) for place, each in enumerate(tensors)]
        return [(place, block) for place, block in found if block is not None and self._cuts(block)]
