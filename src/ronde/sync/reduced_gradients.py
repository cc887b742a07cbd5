"""Reduce-scattered gradients: each rank keeps the elements, or rows, that it updates.

ZeRO stage 2 (Rajbhandari et al. 2020), and the sparse gradients of embeddings whose rows are spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import final

import torch

from ronde.comm.process_group import Comm
from ronde.sync.gradient_shards import GradientShards, HeldGradient, Spans, Wait
from ronde.sync.leaf import Leaf
from ronde.sync.memory_home import Home
from ronde.sync.sparse_rows import cut_rows, gather_rows
from ronde.tensor.tensor_table import TensorTable
from ronde.trace.resident import Census

__all__ = ["ReducedGradients", "whole_everywhere"]


@final
class ReducedGradients(GradientShards):
    """Shards of mean gradients on this rank, by leaf.

    Shards of dense gradients are flat; shards of sparse ones have this rank's rows, numbered from its first.

    Args:
        divide: function that returns the spans of leaves of one bucket; None for an undivided leaf.
        home: memory of the shards.
    """

    away = False

    def __init__(
        self, comm: Comm, divide: Callable[[Sequence[torch.Tensor]], Sequence[Spans | None]], home: Home
    ) -> None:
        super().__init__()
        self._comm = comm
        self._held: TensorTable[HeldGradient] = TensorTable()
        # Number of shards so far: by this number ranks identify the same gradient.
        self._come = 0
        self._divide = divide
        self._home = home

    def _any(self) -> bool:
        return bool(len(self._held))

    def held(self, tensor: torch.Tensor) -> HeldGradient | None:
        return self._held.get(tensor)

    def divide(self, tensors: Sequence[torch.Tensor]) -> Sequence[Spans | None]:
        return self._divide(tensors)

    @property
    def owner(self) -> int:
        return self._comm.rank

    @property
    def leave_device(self) -> bool:
        return self._home.on_host

    def reduce(
        self, spans: Sequence[Spans], out: torch.Tensor, pieces: Sequence[Sequence[torch.Tensor]]
    ) -> Wait:
        return self._comm.reduce_scatter_async(out, pieces)

    def send_home(self, elements: torch.Tensor) -> torch.Tensor:
        return self._home.send_down(elements)

    def wait_for_sent(self) -> None:
        self._home.down([], [])

    @torch.no_grad()
    def add(self, leaf: Leaf, spans: Spans, part: torch.Tensor) -> None:
        self._come += 1  # also without a leaf here: another rank may still have it
        tensor = leaf.tensor
        if tensor is None:
            return
        held = self._held.get(tensor)
        if held is not None and held.part is not None:
            held.part.add_(part)
        else:
            self._held.set(tensor, HeldGradient(self._come, leaf, spans, part, self._comm.rank))

    def keep(self, tensor: torch.Tensor, spans: Spans, mean: torch.Tensor) -> None:
        """Add this rank's elements of a contiguous mean that all ranks have. A collective."""
        own = mean.view(-1)[slice(*(spans[self._comm.rank] or (0, 0)))]
        with torch.inference_mode(False):  # later backwards add to it
            part = self._home.send_down(own.clone())
        self._home.down([], [])
        self.add(Leaf(tensor), spans, part)

    def own(self, tensor: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        held = self._held.get(tensor)
        if held is None:
            return whole
        if _is_sparse(held):
            dim = held.leaf.shape[1]
            return cut_rows(whole, held.span[0] // dim, held.span[1] // dim)
        laid = whole.new_empty_strided(held.leaf.shape, held.leaf.stride).copy_(whole)
        return laid.as_strided((laid.numel(),), (1,))[slice(*held.span)]

    def drop(self, tensor: torch.Tensor) -> None:
        self._held.pop(tensor)

    @torch.no_grad()
    def scale(self, factor: float | torch.Tensor) -> None:
        for held in self._held.values():
            if held.part is not None:
                held.part.mul_(factor)

    @torch.no_grad()
    def whole(self, tensor: torch.Tensor) -> torch.Tensor | None:
        held = self._held.get(tensor)
        if held is None:
            return None
        leaf = held.leaf
        with torch.inference_mode(False):  # later backwards add to it
            if held.part is not None and _is_sparse(held):
                gradient = gather_rows(self._comm, held.part, held.spans, leaf.shape)
            else:
                gradient = self._gathered(held)
        self.drop(tensor)
        leaf.gradient = gradient
        return gradient

    def _gathered(self, held: HeldGradient) -> torch.Tensor:
        leaf = held.leaf
        gradient = torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, device=leaf.device)
        flat = gradient.as_strided((gradient.numel(),), (1,))
        if held.part is not None and held.part.numel():
            self._home.up([flat[slice(*held.span)]], [held.part])
        self._comm.share([[flat[slice(*each)]] if each is not None else [] for each in held.spans])
        return gradient

    def restore(self) -> None:
        whole_everywhere(self, self._held.values(), self._comm)

    def agree(self, tensor: torch.Tensor, spans: Spans) -> None:
        held = self._held.get(tensor)
        if held is not None and held.spans is not spans and held.spans != spans:
            self.whole(tensor)

    def tell(self, census: Census) -> None:
        for held in self._held.values():
            census.count("gradients", held.part)


def _is_sparse(held: HeldGradient) -> bool:
    return held.part is not None and held.part.layout is not torch.strided


def whole_everywhere(gradients: GradientShards, held: Iterable[HeldGradient], comm: Comm) -> None:
    """Gather sharded gradients on every rank. A collective.

    A tensor that is gone on one rank only is left out, as it waits for garbage collection on the others.
    """
    here = {each.number: tensor for each in list(held) if (tensor := each.leaf.tensor) is not None}
    for number in sorted(set.intersection(*comm.all_gather_object(set(here)))):
        gradients.whole(here[number])
