"""Gradients of parameters of which each rank of a tensor group has a block, and computes its gradient itself.

A block is a leaf of its own: its gradient accumulates by autograd's rules, is averaged over the ranks that
have the same block as any other leaf's, and is what `Tensor.grad` of the parameter is made of when a script
reads it.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import torch

from ronde.comm.process_group import Comm
from ronde.sync.gradient_parts import GradientParts, Held, Ranges
from ronde.sync.home import OnDevice
from ronde.sync.leaf import Leaf, give_gradient, gradient_of
from ronde.trace.resident import Census

__all__ = ["Block", "BlockRanges", "LocalGradients"]


class BlockRanges(Protocol):
    """Each rank's elements of a parameter, which on a rank are a block: a tensor of a shape of its own."""

    def shape_of_block(self, shape: Sequence[int], rank: int) -> Sequence[int]:
        """The shape of a rank's block of something of the whole's shape."""
        ...

    def block(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        """A rank's block of something of the whole's shape."""
        ...

    def complete(self, comm: Comm, part: torch.Tensor, whole: torch.Tensor) -> None:
        """Fill a contiguous tensor of the whole's shape from all ranks' blocks, of which `part`, flat, is
        this rank's. All ranks come here."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A parameter that is cut.

    Attributes:
        number: in the order in which blocks were made, the same on all ranks.
        parameter: the whole one, of which this rank has a block.
        ranges: each rank's elements.
        part: this rank's elements, flat.
        leaf: this rank's block, in their memory.
    """

    number: int
    parameter: Leaf
    ranges: BlockRanges
    part: torch.Tensor
    leaf: torch.Tensor


class LocalGradients(GradientParts):
    """By parameter, the gradient of this rank's block.

    Args:
        comm: the tensor group.
        on_new: hears of each new block, whose gradient differs from those of other rows.
        mean: the mean over the ranks that have the same block, which all come there; in place.
    """

    def __init__(
        self,
        comm: Comm,
        on_new: Callable[[torch.Tensor], object],
        mean: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        super().__init__(comm, lambda tensors: [None for _ in tensors], OnDevice())
        self._blocks: dict[int, Block] = {}
        # By number, those whose parameter may be there on some rank: the same on all ranks.
        self._numbered: dict[int, Block] = {}
        self._on_new = on_new
        self._mean = mean
        self._whole_before: set[int] = set()
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._blocks) and not self._aside

    @property
    def blocks(self) -> list[Block]:
        """Those whose parameter is there still, in the order of their numbers."""
        return [block for block in list(self._blocks.values()) if block.parameter.ref() is not None]

    def everywhere(self) -> list[Block]:
        """Those whose parameter is there on every rank, in the order of their numbers; all ranks come here.

        Ranks collect their garbage when they like: `blocks` are not the same on all.
        """
        known = list(self._numbered.values())
        counts = self._comm.votes([block.parameter.ref() is not None for block in known])
        self._numbered = {block.number: block for block, count in zip(known, counts, strict=True) if count}
        ranks = self._comm.world_size
        return [block for block, count in zip(known, counts, strict=True) if count == ranks]

    def block(self, tensor: torch.Tensor) -> Block | None:
        found = self._blocks.get(id(tensor))
        return found if found is not None and found.parameter.ref() is tensor else None

    def add_block(self, tensor: torch.Tensor, ranges: BlockRanges, part: torch.Tensor) -> Block:
        """A parameter, whose elements on this rank are `part`, flat. All ranks come here."""
        self._leave(tensor)
        leaf = part.view(list(ranges.shape_of_block(tensor.shape, self._comm.rank))).detach()
        leaf.requires_grad_(tensor.requires_grad)
        self._count += 1
        block = Block(self._count, Leaf(tensor), ranges, part, leaf)
        key = id(tensor)
        self._blocks[key] = self._numbered[block.number] = block
        weakref.finalize(tensor, self._forget, key, block).atexit = False
        if leaf.requires_grad:
            self._hear(block)
        return block

    def _hear(self, block: Block) -> None:
        """The user's hooks on the parameter hear of the block's gradient."""
        parameter = block.parameter.ref

        def accumulated(_: torch.Tensor) -> None:
            tensor = parameter()
            hooks = None if tensor is None else tensor._post_accumulate_grad_hooks
            for hook in list((hooks or {}).values()):
                hook(tensor)

        self._register(block.leaf, accumulated)
        self._on_new(block.leaf)

    def _register(self, leaf: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> None:
        _REGISTER(leaf, hook)

    def demand(self, block: Block, *, gradient: bool) -> torch.Tensor:
        """The leaf, which requires a gradient where the parameter does."""
        if block.leaf.requires_grad is not gradient:
            block.leaf.requires_grad_(gradient)
            if gradient and not block.leaf._post_accumulate_grad_hooks:
                self._hear(block)
        return block.leaf

    def tell(self, census: Census) -> None:
        for block in self.blocks:
            census.count("gradients", block.leaf.grad)

    def drop(self, tensor: torch.Tensor) -> None:
        block = self.block(tensor)
        if block is not None:
            give_gradient(block.leaf, None)

    @torch.no_grad()
    def scale(self, factor: float | torch.Tensor) -> None:
        for block in self.blocks:
            gradient = gradient_of(block.leaf)
            if gradient is not None:
                gradient.mul_(factor)

    def own(self, tensor: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        block = self.block(tensor)
        if block is None or self._of(tensor) is None:
            return whole
        return block.ranges.block(whole, self._comm.rank).reshape(-1)

    def restore(self) -> None:
        """Make all gradients whole. All ranks come here."""
        for block in self.everywhere():
            tensor = block.parameter.tensor
            assert tensor is not None
            self.whole(tensor)

    def begin_backward(self) -> None:
        """Remember which gradients are whole."""
        self._whole_before = {block.number for block in self.blocks if block.parameter.gradient is not None}

    def end_backward(self) -> None:
        """Averages are there: what came to whole parameters, used in replica, is cut too."""
        self._merge_whole(self.everywhere())

    def _merge_whole(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            whole = block.parameter.gradient
            if whole is not None:
                self._merge(block, whole, stays_whole=block.number in self._whole_before)

    @torch.no_grad()
    def whole(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """As of any parts; where there is a whole one too, which the script may know, it has the sum."""
        known = gradient_of(tensor)
        of_blocks = super().whole(tensor)
        if known is None or of_blocks is None:
            return of_blocks
        known.add_(of_blocks)
        give_gradient(tensor, known)
        return known

    @torch.no_grad()
    def _merge(self, block: Block, whole: torch.Tensor, *, stays_whole: bool) -> None:
        """Have one gradient of what was computed of the whole and of blocks. All ranks come here.

        One that was whole before stays so: the script may know it.
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
        block, whole = self.block(tensor), gradient_of(tensor)
        if block is None or whole is None:
            return
        give_gradient(tensor, None)
        own = block.ranges.block(whole, self._comm.rank)
        gradient = gradient_of(block.leaf)
        if gradient is None:
            with torch.inference_mode(False):
                give_gradient(block.leaf, own.contiguous().clone())
        else:
            gradient.add_(own)

    def agree(self, tensor: torch.Tensor, ranges: object) -> None:
        """The step is one of blocks."""
        self.take_part(tensor)

    def _of(self, tensor: torch.Tensor) -> Held | None:
        block = self.block(tensor)
        gradient = None if block is None else gradient_of(block.leaf)
        if block is None or gradient is None:
            return None
        return Held(block.number, block.parameter, cast(Ranges, block.ranges), gradient.view(-1))

    def _complete(self, flat: torch.Tensor, ranges: Sequence[object], part: torch.Tensor) -> None:
        block = next(block for block in self.blocks if block.ranges is ranges)
        # The parameter is contiguous, or it would not have been cut.
        block.ranges.complete(self._comm, part, flat.view(block.parameter.shape))

    def _leave(self, tensor: torch.Tensor) -> None:
        """A parameter has no block any longer, or another one. All ranks come here."""
        block = self.block(tensor)
        if block is not None:
            self._forget(id(tensor), block)
            del self._numbered[block.number]

    def _forget(self, key: int, block: Block) -> None:
        if self._blocks.get(key) is block:
            del self._blocks[key]


# torch's own, because a session replaces the method for scripts.
_REGISTER = torch.Tensor.register_post_accumulate_grad_hook
