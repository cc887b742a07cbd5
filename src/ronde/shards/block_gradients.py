"""Gradients of blocks, computed by the rank that has the block.

A block is a separate leaf: its gradient accumulates by autograd's rules and is averaged over the ranks that
have the same block, as any other leaf's. `Tensor.grad` of the parameter is assembled from blocks when a
script reads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import final

import torch

from ronde.comm.process_group import Comm
from ronde.patching.torch_internals import DisableTorchFunction
from ronde.shards.partition import Partition
from ronde.shards.spec import ShardSpec
from ronde.sync.gradient_shards import GradientShards, HeldGradient, Spans
from ronde.sync.leaf import Leaf, give_gradient, gradient_of
from ronde.sync.reduced_gradients import ReducedGradients
from ronde.tensor.tensor_table import TensorTable
from ronde.trace.resident import Census

__all__ = ["BlockGradients", "ParameterBlock", "Scattered"]


@dataclasses.dataclass(frozen=True, slots=True)
class ParameterBlock:
    """A rank's block of a parameter.

    Attributes:
        number: index in the order in which blocks were made, the same on all ranks.
        parameter: the whole one.
        spec: each rank's elements.
        part: elements of the parameter on this rank, flat.
        leaf: block of this rank, in the memory of `part`, or gathered from its replicas.
    """

    number: int
    parameter: Leaf
    spec: ShardSpec
    part: torch.Tensor
    leaf: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class Scattered:
    """Gradients of blocks, cut once more over replicas (ZeRO-2 in a block).

    Attributes:
        gradients: elements of the mean over replicas that this rank has, for each group of replicas; their
            keys are blocks and whole parameters.
        partition: the elements of a parameter that each of all ranks updates.
        everybody: all ranks.
        blocks: number of the block that each rank of `everybody` has.
        keep: adds the replicas' gradient of a block to this rank's elements of it; False where none of
            them has a part.
    """

    gradients: Sequence[ReducedGradients]
    partition: Partition
    everybody: Comm
    blocks: Sequence[int]
    keep: Callable[[ParameterBlock, torch.Tensor], bool]

    def of(self, leaf: torch.Tensor) -> ReducedGradients | None:
        """Find the shard of a gradient; None where it is whole, or not there."""
        return next((each for each in self.gradients if leaf in each), None)


@final
class BlockGradients(GradientShards):
    """Gradient of this rank's block, by parameter.

    Ranks without an element of a parameter get an empty gradient as soon as its owner has one, so ranks agree
    on which gradients exist.

    Args:
        comm: the ranks that have other blocks.
        on_new: callback for each new block, whose gradient differs from that of other rows.
        mean: the mean over the ranks that have the same block, in place. A collective among these.
        give: function that adds to a leaf's gradient during backward; it returns False where that must wait
            for the end.
        scattered: gradients of blocks that are cut once more; None where a rank has all of its block's
            gradient.
    """

    away = False

    def __init__(
        self,
        comm: Comm,
        on_new: Callable[[ParameterBlock], object],
        mean: Callable[[torch.Tensor], torch.Tensor],
        give: Callable[[ParameterBlock, torch.Tensor], bool],
        scattered: Scattered | None = None,
    ) -> None:
        super().__init__()
        self._scattered = scattered
        self._comm = comm
        self._blocks: TensorTable[ParameterBlock] = TensorTable()
        # Blocks by number with a parameter that may be live on some rank: the same on all ranks.
        self._numbered: dict[int, ParameterBlock] = {}
        self._on_new = on_new
        self._mean = mean
        self._give = give
        self._whole_before: set[int] = set()
        self._count = 0

    def _any(self) -> bool:
        return bool(len(self._blocks)) or any(self._scattered_gradients)

    @property
    def _scattered_gradients(self) -> Sequence[ReducedGradients]:
        return () if self._scattered is None else self._scattered.gradients

    @property
    def blocks(self) -> list[ParameterBlock]:
        """Return the blocks with a live parameter, in the order of their numbers."""
        return list(self._blocks.values())

    def everywhere(self, comm: Comm | None = None) -> list[ParameterBlock]:
        """Return the blocks with a live parameter on every rank. A collective.

        They are in the order of their numbers. Garbage is collected at different moments on different ranks,
        so `blocks` may differ between them.

        Args:
            comm: the ranks that are asked; the tensor group by default.
        """
        comm = comm or self._comm
        known = list(self._numbered.values())
        counts = comm.votes([block.parameter.ref() is not None for block in known])
        self._numbered = {block.number: block for block, count in zip(known, counts, strict=True) if count}
        ranks = comm.world_size
        return [block for block, count in zip(known, counts, strict=True) if count == ranks]

    def block(self, tensor: torch.Tensor) -> ParameterBlock | None:
        return self._blocks.get(tensor)

    def add_block(
        self, tensor: torch.Tensor, spec: ShardSpec, part: torch.Tensor, leaf: torch.Tensor
    ) -> ParameterBlock:
        """Compute gradients of a parameter by a leaf, which is this rank's block. A collective.

        Args:
            part: elements of the parameter on this rank, flat.
        """
        self._leave(tensor)
        leaf.requires_grad_(tensor.requires_grad)
        self._count += 1
        block = ParameterBlock(self._count, Leaf(tensor), spec, part, leaf)
        self._blocks.set(tensor, block)
        self._numbered[block.number] = block
        if leaf.requires_grad:
            self._call_hooks(block)
            self._cut_at_once(tensor, block.number)
        return block

    def _cut_at_once(self, tensor: torch.Tensor, number: int) -> None:
        """Keep only this rank's block of a whole gradient during backward."""

        def accumulated(tensor: torch.Tensor) -> None:
            block, whole = self._blocks.get(tensor), gradient_of(tensor)
            if block is None or block.number != number or number in self._whole_before:
                return
            if whole is None or whole.layout is not torch.strided:
                return
            if self._give(block, self._block_of(block, whole)):
                give_gradient(tensor, None)

        with DisableTorchFunction():  # a sharded gradient would be gathered
            _REGISTER(tensor, accumulated)

    def _call_hooks(self, block: ParameterBlock) -> None:
        """Call the user's hooks on the parameter for its block's gradient.

        They get a dense gradient.
        """
        parameter = block.parameter.ref

        def accumulated(leaf: torch.Tensor) -> None:
            gradient = gradient_of(leaf)
            if gradient is not None and gradient.layout is not torch.strided:
                give_gradient(leaf, gradient.to_dense())
            tensor = parameter()
            hooks = None if tensor is None else tensor._post_accumulate_grad_hooks
            for hook in list((hooks or {}).values()):
                hook(tensor)

        _REGISTER(block.leaf, accumulated)
        self._on_new(block)

    def demand(self, block: ParameterBlock, *, gradient: bool) -> torch.Tensor:
        """Return a block's leaf, which requires a gradient if the parameter does."""
        if block.leaf.requires_grad is not gradient:
            block.leaf.requires_grad_(gradient)
            if gradient and not block.leaf._post_accumulate_grad_hooks:
                self._call_hooks(block)
        return block.leaf

    def held(self, tensor: torch.Tensor) -> HeldGradient | None:
        block = self._blocks.get(tensor)
        gradient = None if block is None else gradient_of(block.leaf)
        if block is None or gradient is None:
            return self._held_scattered(tensor, block)
        spec, rank = block.spec, self._comm.rank
        if self._scattered is not None:
            spec, rank = spec.of(self._scattered.blocks), self._scattered.everybody.rank
        return HeldGradient(block.number, block.parameter, spec, gradient.view(-1), rank)

    def _held_scattered(self, tensor: torch.Tensor, block: ParameterBlock | None) -> HeldGradient | None:
        if self._scattered is None:
            return None
        of = tensor if block is None else block.leaf
        found = self._scattered.of(of)
        held = None if found is None else found.held(of)
        (spec,) = self._scattered.partition.assign([tensor])
        if held is None or spec is None:
            return None
        leaf = held.leaf if block is None else block.parameter
        return HeldGradient(held.number, leaf, spec, held.part, self._scattered.everybody.rank)

    def _gather_replicas(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Gather the gradient of a block, or of a whole parameter, from its replicas. A collective."""
        found = None if self._scattered is None else self._scattered.of(tensor)
        return None if found is None else found.whole(tensor)

    def tell(self, census: Census) -> None:
        for block in self.blocks:
            census.count("gradients", gradient_of(block.leaf))
        for each in self._scattered_gradients:
            each.tell(census)

    def drop(self, tensor: torch.Tensor) -> None:
        block = self._blocks.get(tensor)
        if block is not None:
            give_gradient(block.leaf, None)
        for each in self._scattered_gradients:
            each.drop(tensor if block is None else block.leaf)

    @torch.no_grad()
    def scale(self, factor: float | torch.Tensor) -> None:
        for block in self.blocks:
            gradient = gradient_of(block.leaf)
            if gradient is not None:
                gradient.mul_(factor)
        for each in self._scattered_gradients:
            each.scale(factor)

    def own(self, tensor: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        if tensor not in self._blocks:
            found = None if self._scattered is None else self._scattered.of(tensor)
            return whole if found is None else found.own(tensor, whole)
        held = self.held(tensor)
        return (
            whole
            if held is None or not isinstance(held.spans, ShardSpec)
            else held.spans.own(whole, held.owner)
        )

    def restore(self) -> None:
        for block in self.everywhere():
            tensor = block.parameter.tensor
            assert tensor is not None
            self.whole(tensor)
        for each in self._scattered_gradients:
            each.restore()

    def beside(self) -> list[torch.Tensor]:
        """Return whole gradients of a backward, to be added to blocks at its end."""
        tensors = [tensor for block in self.blocks if (tensor := block.parameter.tensor) is not None]
        return [whole for tensor in tensors if (whole := gradient_of(tensor)) is not None]

    def begin_backward(self) -> None:
        """Remember which gradients are whole."""
        self._whole_before = {block.number for block in self.blocks if block.parameter.gradient is not None}

    def end_backward(self) -> None:
        """Agree on averaged gradients, and cut gradients of whole parameters.

        A parameter with blocks has a whole gradient where a call used it whole, in replica.
        """
        blocks = self.everywhere()
        # Gradients that were whole before are gathered first; for that, ranks must agree on which gradients
        # exist.
        self._agree_on_gradients([block for block in blocks if None in block.spec.spans])
        for block in blocks:
            whole = block.parameter.gradient
            if whole is not None:
                self._merge(block, whole, stays_whole=block.number in self._whole_before)

    def _agree_on_gradients(self, blocks: Sequence[ParameterBlock]) -> None:
        if not blocks:
            return
        owns = [block.spec[self._comm.rank] is not None for block in blocks]
        counts = self._comm.votes(
            [own and self._has_gradient(block) for own, block in zip(owns, blocks, strict=True)]
        )
        for block, own, count in zip(blocks, owns, counts, strict=True):
            if count and not own and gradient_of(block.leaf) is None:
                with torch.inference_mode(False):
                    give_gradient(block.leaf, block.leaf.new_empty(0))

    def _has_gradient(self, block: ParameterBlock) -> bool:
        shared = self._scattered is not None and self._scattered.of(block.leaf) is not None
        return shared or gradient_of(block.leaf) is not None

    @torch.no_grad()
    def whole(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Gather a whole gradient, and add it to one that the script may hold.

        See `GradientShards.whole`.
        """
        block = self._blocks.get(tensor)
        if block is None:
            return self._gather_replicas(tensor)
        self._gather_replicas(block.leaf)
        known, of_blocks = gradient_of(tensor), self._gathered(tensor)
        if of_blocks is None:
            return None
        self.drop(tensor)
        total = of_blocks if known is None else known.add_(of_blocks)
        give_gradient(tensor, total)
        return total

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor | None:
        held, block = self.held(tensor), self._blocks.get(tensor)
        if held is None or block is None or held.part is None:
            return None
        leaf = held.leaf
        # Only contiguous parameters are cut.
        with torch.inference_mode(False):  # later backwards add to it
            gradient = torch.empty(leaf.shape, dtype=leaf.dtype, device=leaf.device)
        block.spec.gather(self._comm, held.part, gradient)
        return gradient

    @torch.no_grad()
    def _merge(self, block: ParameterBlock, whole: torch.Tensor, *, stays_whole: bool) -> None:
        """Merge the gradient of the whole parameter with that of its blocks. A collective.

        A gradient that was whole before stays whole: the script may hold it.
        """
        tensor = block.parameter.tensor
        if tensor is None:
            return
        self._mean(whole)
        if not stays_whole:
            return self.take_part(tensor)
        self.whole(tensor)

    @torch.no_grad()
    def take_part(self, tensor: torch.Tensor) -> None:
        """Keep this rank's block of a whole gradient only."""
        block, whole = self._blocks.get(tensor), gradient_of(tensor)
        if block is None or whole is None:
            return
        give_gradient(tensor, None)
        self._add(block, self._block_of(block, whole))

    @torch.no_grad()
    def _add(self, block: ParameterBlock, own: torch.Tensor) -> None:
        scattered = None if gradient_of(block.leaf) is not None else self._scattered
        if scattered is not None and scattered.keep(block, own):
            return
        self._gather_replicas(block.leaf)
        gradient = gradient_of(block.leaf)
        give_gradient(block.leaf, own if gradient is None else gradient.add_(own))

    @torch.no_grad()
    def _block_of(self, block: ParameterBlock, whole: torch.Tensor) -> torch.Tensor:
        """Copy this rank's block of a whole gradient."""
        with torch.inference_mode(False):  # later backwards add to it
            return block.spec.own(whole, self._comm.rank).clone().view(block.leaf.shape)

    def agree(self, tensor: torch.Tensor, spans: Spans) -> None:
        """Keep only this rank's block of a whole gradient: the step updates blocks."""
        self.take_part(tensor)

    def forget(self, tensor: torch.Tensor) -> None:
        """Make a parameter and its gradient whole on every rank, for good. A collective."""
        self.whole(tensor)
        self._leave(tensor)

    def _leave(self, tensor: torch.Tensor) -> None:
        """Stop using the block of a parameter. A collective."""
        block = self._blocks.pop(tensor)
        if block is not None:
            del self._numbered[block.number]


# torch's own, because a session replaces the method for scripts.
_REGISTER = torch.Tensor.register_post_accumulate_grad_hook
