"""The loader edge: every rank runs the script's sampler and loads its slice.

Ids, order, lengths and random state are thereby those of one device: no DistributedSampler, no `set_epoch`,
no padding, and a last batch of any size is cut unevenly. The cut is made in the loader's iterator, with a
queue per iterator, so that workers, prefetching, persistent workers, abandoned iterators, `zip` and custom
batch samplers need no care. The whole batch is loaded on every rank where a slice would change the answer:
another collate function than torch's own (it may pad to the longest sample), samples that draw random numbers
or depend on earlier ones, datasets that record their reads, iterable datasets, values other than tensors, and
batches with fewer samples than ranks.
"""

from __future__ import annotations

import collections
import multiprocessing
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter_ns
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate, get_worker_info

from ronde.batches.first_tensor import first_tensor
from ronde.batches.samples import Loading, Shown, Watched, watched
from ronde.errors import RondeError, UsageError
from ronde.patching.patches import Patches
from ronde.patching.stacks import NEXT_BATCH
from ronde.patching.torch_internals import BaseDataLoaderIter, DatasetKind, MapDatasetFetcher
from ronde.plan.data import Data
from ronde.tensor.context import Context, Region
from ronde.tensor.fingerprint import require_alike
from ronde.tensor.global_tensor import Rule, cuts_rows, gather_ahead, wrap
from ronde.tensor.tensor_class import own_class, written
from ronde.tensor.tree import Opaque, leaves, map_leaves
from ronde.trace.counters import Tally
from ronde.trace.step_clock import Activity

__all__ = ["LoaderEdge"]

_AHEAD_BYTES = 1 << 16


class LoaderEdge:
    """Cuts the index batches of map-style loaders; one per session.

    Args:
        unmediated: context in which file operations of a dataset are this rank's own, while it loads its
            samples.
        data: the data part of the plan; its `loading` is `auto`, `sliced` (trust the collate function and
            samples) or `full` (never slice).
    """

    def __init__(
        self,
        context: Context,
        rules: dict[Any, Rule],
        data: Data,
        tally: Tally,
        note: Callable[[str], None],
        unmediated: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._context = context
        self._rules = rules
        self._loading, self._batch_dim = data.loading, data.batch_dim or 0
        self._tally, self._note = tally, note
        self._unmediated = unmediated
        self._known: weakref.WeakKeyDictionary[DataLoader[Any], Loading] = weakref.WeakKeyDictionary()
        self._plain_fetch: Any = MapDatasetFetcher.fetch

    def install(self, patches: Patches) -> None:
        edge, comm, clock = self, self._context.comm, self._context.clock
        plain_init: Any = BaseDataLoaderIter.__init__
        plain_reset: Any = BaseDataLoaderIter._reset
        plain_index: Any = BaseDataLoaderIter._next_index

        def init(iterator: Any, loader: Any) -> None:
            plain_init(iterator, loader)
            edge._begin(iterator, loader)

        def reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            plain_reset(iterator, loader, first_iter)
            iterator._ronde_queue.clear()

        def next_index(iterator: Any) -> Any:
            index = plain_index(iterator)
            edge._mark(index)
            return edge._cut(iterator, index)

        def around(plain: Callable[..., Any]) -> Callable[..., Any]:
            def next_batch(iterator: Any) -> Any:
                begun, waited = perf_counter_ns(), comm.waited_ns
                before = clock.enter(Activity.OWN) if clock.armed else None
                try:
                    with edge._fetching(iterator):
                        if before is not None:
                            clock.enter(Activity.ROWS if iterator._ronde_loading.proven else Activity.SCRIPT)
                        data = edge._next(plain, iterator)
                finally:
                    if before is not None:
                        clock.enter(before)
                if before is not None:
                    clock.enter(Activity.OWN)
                data = edge._deliver(iterator, data)
                if edge._context.on_main_thread():
                    spent = perf_counter_ns() - begun - (comm.waited_ns - waited)
                    edge._tally.deliver(spent, _rows_of(data, edge._batch_dim))
                if before is not None:
                    clock.enter(before)
                return data

            return next_batch

        patches.set(BaseDataLoaderIter, "__init__", init)
        patches.set(BaseDataLoaderIter, "_reset", reset)
        patches.set(BaseDataLoaderIter, "_next_index", next_index)
        patches.layer(NEXT_BATCH, "boundary", around)
        patches.set(MapDatasetFetcher, "fetch", self._watched(self._plain_fetch))

    def _next(self, plain_next: Any, iterator: Any) -> Any:
        """Return the next batch; a rank's own samples may raise on that rank alone."""
        if not self._may_stand():
            return plain_next(iterator)
        try:
            return self._context.attempt(lambda: plain_next(iterator))
        except Exception:
            if iterator._ronde_queue:
                iterator._ronde_queue.popleft()  # a script that catches this gets the next batch
            raise

    def _watched(self, plain_fetch: Any) -> Callable[[Any, Any], Any]:
        """Wrap the fetch of samples, in any process.

        Modules that samples go through do not count as models.
        """
        read = watched(plain_fetch, asks=self._context.world_size > 1)

        def fetch(fetcher: Any, index: Any) -> Any:
            if not isinstance(fetcher.collate_fn, Watched) or self._is_beside():
                with self._reading():
                    return plain_fetch(fetcher, index)
            with self._context.enter(Region.REPLICATED, None):
                return read(fetcher, index, fetcher.collate_fn.loading)

        return fetch

    def _reading(self) -> AbstractContextManager[None]:
        """Enter the region for samples while the main thread reads whole batches."""
        return self._context.enter(Region.SAMPLES) if self._may_stand() else nullcontext()

    def _may_stand(self) -> bool:
        """Return whether the region may be entered: it must not be nested."""
        return self._context.on_main_thread() and self._context.standing.region is Region.SCRIPT

    def _begin(self, iterator: Any, loader: Any) -> None:
        iterator._ronde_queue = collections.deque()
        iterator._ronde_loading = loading = self._known.setdefault(loader, self._judge(loader))
        iterator._in_order = True  # batches in the order of arrival would differ between ranks
        if loading.reason:
            self._say(loader.dataset, loading.reason)
        if loading.sliceable:
            iterator._collate_fn = Watched(iterator._collate_fn, loading)

    def _is_beside(self) -> bool:
        """Return whether a thread other than the main one reads batches ahead.

        Samples are not inspected there, and ranks do not agree on findings.
        """
        return get_worker_info() is None and not self._context.on_main_thread()

    def _agree(self, iterator: Any, loading: Loading, still: bool) -> None:
        """Slice from now on if no rank has found a reason not to.

        Ranks must agree, since workers are not in step.
        """
        context = self._context
        votes = context.comm.all_reduce(torch.tensor([int(still)], device=context.comm.control_device))
        loading.proven = int(votes) == context.world_size
        if not loading.proven:
            loading.sliceable = False
            iterator._ronde_queue.clear()
            self._say(iterator._dataset, loading.why_whole)

    def _compare(self, data: Any) -> None:
        """Compare the first batch over ranks, to find datasets that differ.

        They may be gathered by threads, say, or in the order of a set. Every rank has loaded a first batch
        whole, except where it was told to trust slices.
        """
        try:
            values = [value for value in leaves(data) if isinstance(value, torch.Tensor)]
        except Opaque:
            return
        require_alike(self._context.comm, "a first batch", values)

    def _say(self, dataset: Any, reason: str) -> None:
        self._note(f"{type(dataset).__name__}: every rank loads whole batches, because {reason} [R317]")

    def _fetching(self, iterator: Any) -> AbstractContextManager[Any]:
        """Mark ranks as out of step while each loads its samples in this process."""
        if not hasattr(iterator, "_ronde_loading"):
            raise UsageError(
                "this iterator of a DataLoader was made before ronde.init(), and its batches may differ "
                "between ranks; call iter(loader) after ronde.init() [R383]"
            )
        loading: Loading = iterator._ronde_loading
        return self._unmediated() if loading.proven and not iterator._num_workers else nullcontext()

    def _judge(self, loader: Any) -> Loading:
        if self._loading == "full":
            return Loading()
        if loader._dataset_kind != DatasetKind.Map:
            return Loading("an iterable dataset has no indices that could be cut [R361]")
        if not loader._auto_collation:
            return Loading("the loader makes no batches of samples [R361]")
        if self._loading == "sliced":
            return Loading(sliceable=True, always=True)
        if loader.num_workers and _start_method(loader) != "fork":
            return Loading("its workers are not forked, so ronde cannot see what they change [R363]")
        if loader.collate_fn is not default_collate:
            return Loading("its collate_fn may use all samples of the batch, for example to pad them [R360]")
        return Loading(sliceable=True)

    def _mark(self, index: Any) -> None:
        """Compare index batches over ranks, to find samplers that differ."""
        known = type(index) is list and index and all(type(each) is int for each in index)
        if known and self._context.on_main_thread():
            first = ", ".join(map(str, index[:3]))
            digest = hash(tuple(index)) & 0xFFFFFFFF
            self._context.comm.mark(f"batch of {len(index)} samples: {first}, ... (digest {digest:08x})")

    def _cut(self, iterator: Any, index: Any) -> Any:
        """Return this rank's part of an index batch, and queue the cut."""
        loading: Loading = iterator._ronde_loading
        if not loading.sliceable:
            return index
        whole = list(index)
        if not self._may_cut(loading) or len(whole) < self._context.world_size:
            iterator._ronde_queue.append((len(whole), False))
            return whole
        iterator._ronde_queue.append((len(whole), True))
        start, stop = self._context.layout(0, len(whole)).bounds(self._context.rank)
        return whole[start:stop]

    def _may_cut(self, loading: Loading) -> bool:
        """Return whether batches may be cut: in threads, only trusted samples are.

        Samples that a thread reads are not inspected.
        """
        return loading.proven and (self._loading == "sliced" or not self._is_beside())

    def _deliver(self, iterator: Any, data: Any) -> Any:
        loading: Loading = iterator._ronde_loading
        if not loading.compared and self._context.on_main_thread():
            loading.compared = True
            self._compare(data)
        if not loading.sliceable or not iterator._ronde_queue:
            return data
        rows, sliced = iterator._ronde_queue.popleft()
        if loading.flag.value == Shown.LOST:
            raise RondeError(
                f"samples of {type(iterator._dataset).__name__} depend on those that a worker read before; "
                f"use --loading full [R362]"
            )
        if self._loading == "auto" and loading.flag.value == Shown.DRAWS:
            if sliced or any(cut for _, cut in iterator._ronde_queue):
                raise RondeError(
                    f"the dataset {type(iterator._dataset).__name__} began to draw random numbers after "
                    f"batches without; its slices would differ from the single-device batches. "
                    f"Use --loading full [R371]"
                )
            still = False
        else:
            still = loading.flag.value == Shown.STILL and _is_batch(data, rows)
        if not sliced:
            if not loading.proven and self._context.on_main_thread():
                self._agree(iterator, loading, still)
            return data
        layout = self._context.layout(0, rows)
        mine = layout.count(self._context.rank)

        def whole(value: Any) -> Any:
            if not (isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == mine):
                return value
            wrapped = wrap(self._context, value, layout, self._rules)
            if _like_labels(value, rows) and self._context.on_main_thread():
                gather_ahead(wrapped)
            return wrapped

        return map_leaves(whole, data)


def _like_labels(value: torch.Tensor, rows: int) -> bool:
    """Return whether a value is like labels: small integers.

    A loss will count valid labels, for which every rank needs all of them.
    """
    small = value[0].numel() * rows * value.element_size() <= _AHEAD_BYTES
    return small and value.dtype in (torch.int64, torch.int32, torch.uint8)


def _start_method(loader: Any) -> str | None:
    context = loader.multiprocessing_context
    return (context or multiprocessing).get_start_method()


def _is_batch(data: Any, rows: int) -> bool:
    """Return whether every leaf is a tensor with one row per sample."""
    try:
        found = list(leaves(data))
    except Opaque:
        return False
    return all(
        isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == rows and not _is_marked(value)
        for value in found
    )


def _is_marked(value: torch.Tensor) -> bool:
    """Return whether a batch's tensor has its own class or attributes.

    Its rows would lose these.
    """
    return own_class(value) is not None or bool(written(value))


def _rows_of(batch: Any, dim: int) -> int | None:
    """Return the rows of a batch's first tensor along `dim`, or None."""
    first = first_tensor(batch)
    if cuts_rows(first):
        return first._layout.rows
    return None if first is None or first.dim() <= dim else first.shape[dim]
