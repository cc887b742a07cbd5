"""Slices of a loader's batches for ranks that train by themselves.

All ranks draw the same batches: the random numbers of a loader's samplers come from one stream, which nothing
else on a rank draws from. A rank loads only its own samples of a map-style dataset, and collates them by
themselves; of an iterable one it keeps its rows. Batches that are drawn without gradients, for evaluation,
stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ronde.batches.first_tensor import first_tensor
from ronde.comm.split import even_part
from ronde.patching.patches import Patches
from ronde.patching.stacks import NEXT_BATCH
from ronde.patching.torch_internals import BaseDataLoaderIter, DatasetKind
from ronde.tensor.tree import map_leaves

__all__ = ["LocalSlices", "share_of", "slice_of"]


def share_of(rows: int, rank: int, ranks: int) -> slice:
    """Return the rows of a batch for one rank.

    A batch with fewer rows than ranks gives each rank one of them.
    """
    if rows < ranks:
        return slice(rank % rows, rank % rows + 1) if rows else slice(0, 0)
    return slice(*even_part(rows, ranks, rank))


class LocalSlices:
    """Cuts batches of loaders.

    Attributes:
        cut: the number of batches cut.
        whole: function that returns for each batch whether it stays whole, because another part of ronde cuts
            it.
    """

    def __init__(self, rank: int, ranks: int, deliver: Callable[[int | None], object]) -> None:
        self.cut = 0
        self.whole: Callable[[], bool] = lambda: False
        self._rank, self._ranks = rank, ranks
        self._deliver = deliver
        self._stream: torch.Tensor | None = None

    def install(self, patches: Patches) -> None:
        slices = self
        plain_init: Any = BaseDataLoaderIter.__init__
        plain_reset: Any = BaseDataLoaderIter._reset
        plain_index: Any = BaseDataLoaderIter._next_index

        def init(iterator: Any, loader: Any) -> None:
            iterator._ronde_cuts, iterator._ronde_ahead = torch.is_grad_enabled(), 0
            with slices._common_stream():
                plain_init(iterator, loader)
            iterator._in_order = True  # batches in the order of arrival would differ between ranks

        def reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            iterator._ronde_cuts, iterator._ronde_ahead = torch.is_grad_enabled(), 0
            with slices._common_stream():
                plain_reset(iterator, loader, first_iter)

        def next_index(iterator: Any) -> Any:
            with slices._common_stream():
                index = plain_index(iterator)
            if iterator._ronde_cuts and iterator._dataset_kind == DatasetKind.Map and _is_batch(index):
                slices.cut += 1
                if slices.whole():
                    iterator._ronde_ahead += 1
                    return index
                return index[share_of(len(index), slices._rank, slices._ranks)]
            return index

        def around(plain: Callable[..., Any]) -> Callable[..., Any]:
            def next_batch(iterator: Any) -> Any:
                data = plain(iterator)
                # Batches that a worker loaded whole before are delivered first.
                is_whole = iterator._dataset_kind != DatasetKind.Map or iterator._ronde_ahead > 0
                iterator._ronde_ahead = max(0, iterator._ronde_ahead - 1)
                if iterator._ronde_cuts and is_whole and not slices.whole():
                    slices.cut += _count(data) is not None
                    data = slice_of(data, slices._rank, slices._ranks)
                slices._deliver(_count(data))
                return data

            return next_batch

        patches.set(BaseDataLoaderIter, "__init__", init)
        patches.set(BaseDataLoaderIter, "_reset", reset)
        patches.set(BaseDataLoaderIter, "_next_index", next_index)
        patches.layer(NEXT_BATCH, "slices", around)

    @contextmanager
    def _common_stream(self) -> Iterator[None]:
        """Switch torch's generator to the stream common to all ranks."""
        own = torch.get_rng_state()
        if self._stream is not None:
            torch.set_rng_state(self._stream)
        try:
            yield
        finally:
            self._stream = torch.get_rng_state()
            torch.set_rng_state(own)


def slice_of(data: Any, rank: int, ranks: int) -> Any:
    """Return a rank's rows of a whole batch; values without rows stay unchanged."""
    rows = _count(data)
    if rows is None:
        return data
    share = share_of(rows, rank, ranks)

    def own(value: Any) -> Any:
        has_rows = isinstance(value, torch.Tensor) and value.dim() and len(value) == rows
        return value[share] if has_rows else value

    return map_leaves(own, data)


def _is_batch(index: Any) -> bool:
    return isinstance(index, (list, tuple)) and len(index) > 0


def _count(data: Any) -> int | None:
    """Return the rows of the first tensor in a batch."""
    first = first_tensor(data)
    return len(first) if first is not None and first.dim() else None
