"""The loader edge: every rank runs the script's own sampler and loads its slice of every index batch.

Ids, order, lengths and random state are thereby those of one device: no DistributedSampler, no `set_epoch`,
no padding, and a last batch of any size is cut unevenly. The cut is made in the loader's iterator, with a
queue per iterator, so that workers, prefetching, persistent workers, abandoned iterators, `zip` and
custom batch samplers need no care. The whole batch is loaded on every rank where a slice would change the
answer: another collate function than torch's own (it may pad to the longest sample), samples that draw
random numbers or depend on what was read before them, datasets that keep a book of what was read, iterable
datasets, values that are no tensors, and batches with fewer samples than ranks.
"""

from __future__ import annotations

import collections
import copy
import multiprocessing
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter_ns
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset, default_collate, get_worker_info
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from ronde.batches.read_again import Asked, read_again, repeats
from ronde.boundary.holdings import Holdings
from ronde.boundary.reach import Reach
from ronde.errors import RondeError, UsageError
from ronde.patching.other_threads import others_run, reads_ahead_for
from ronde.patching.patches import Patches
from ronde.patching.thread_stream import redirected
from ronde.rng.host_generators import HostGenerators
from ronde.rng.named_hosts import hosts_in_samples, is_of_process
from ronde.rng.random_state import Drawn
from ronde.tensor.context import Context, Region
from ronde.tensor.fingerprint import apart, end, unlike
from ronde.tensor.global_tensor import GlobalTensor, Rule, gather_ahead, wrap
from ronde.tensor.tensor_class import own_class, written
from ronde.tensor.tree import Opaque, leaves, map_leaves
from ronde.trace.step_clock import Part

__all__ = ["LoaderEdge"]

# What fetching has shown: nothing yet; a sample is a function of its index; it is not; a book is kept.
_UNKNOWN, _STILL, _MOVED, _ORDERED, _BOOKED, _BESIDE = 0, 1, 2, 3, 4, 5
_WHY = {
    _STILL: "its batches hold other values than one row of a tensor for each sample",
    _MOVED: "its samples draw random numbers",
    _ORDERED: "a sample depends on the order in which samples are read, or on those read with it",
    _BESIDE: "a thread works for it, and what that changes could not be told from what reading a sample "
    "changes (--loading sliced trusts the samples)",
}
_AHEAD_BYTES = 1 << 16


class _Loading:
    """What is known of one loader: whether its batches may be loaded in slices, and if not, why.

    Attributes:
        flag: what fetching has shown, in whatever process.
        book: what reading changes on the dataset, seen in this process.
        compared: ranks know that their first batches are the same.
    """

    def __init__(self, reason: str = "", *, sliceable: bool = False, always: bool = False) -> None:
        self.flag: Any = multiprocessing.RawValue("b", _UNKNOWN)
        self.book = ""
        self.reason = reason
        self.sliceable = sliceable
        self.proven = self.compared = always
        self._hosts: frozenset[str] | None = None

    def hosts(self, dataset: Any) -> frozenset[str]:
        """From which of Python's and numpy's generators its code may draw."""
        if self._hosts is None:
            self._hosts = hosts_in_samples(_reached(dataset))
        return self._hosts

    @property
    def shown(self) -> str:
        """Why its batches are not cut, as fetching has shown."""
        if self.book:
            return self.book
        return _WHY.get(self.flag.value, _WHY[_STILL])


class _Watched:
    """A collate function, and what is known of its loader, for those who fetch: worker processes perhaps."""

    def __init__(self, collate: Callable[[Any], Any], loading: _Loading) -> None:
        self.collate = collate
        self.loading = loading

    def __call__(self, samples: Any) -> Any:
        return self.collate(samples)


class LoaderEdge:
    """Cuts the index batches of map-style loaders; one per session.

    Args:
        unmediated: files that a dataset touches while it loads this rank's samples are this rank's own.
        loading: `auto`, `sliced` (trust the collate function and samples) or `full` (never slice).
    """

    def __init__(
        self,
        context: Context,
        rules: dict[Any, Rule],
        loading: str,
        unmediated: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._context = context
        self._rules = rules
        self._loading = loading
        self._unmediated = unmediated
        self._known: weakref.WeakKeyDictionary[DataLoader[Any], _Loading] = weakref.WeakKeyDictionary()
        self._plain_fetch: Any = _MapDatasetFetcher.fetch

    def install(self, patches: Patches) -> None:
        edge, comm, clock = self, self._context.comm, self._context.clock
        plain_init: Any = _BaseDataLoaderIter.__init__
        plain_reset: Any = _BaseDataLoaderIter._reset
        plain_index: Any = _BaseDataLoaderIter._next_index
        plain_next: Any = _BaseDataLoaderIter.__next__

        def init(iterator: Any, loader: Any) -> None:
            plain_init(iterator, loader)
            edge._begin(iterator, loader)

        def reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            plain_reset(iterator, loader, first_iter)
            iterator._ronde_queue.clear()
            iterator._ronde_asked.clear()
            iterator._ronde_counts.clear()

        def next_index(iterator: Any) -> Any:
            index = plain_index(iterator)
            edge._mark(index)
            iterator._ronde_counts.append(_samples(iterator, index))
            if not iterator._ronde_loading.compared:
                iterator._ronde_asked.append(Asked(index))
            return edge._cut(iterator, index)

        def next_batch(iterator: Any) -> Any:
            begun, waited = perf_counter_ns(), comm.waited_ns
            before = clock.enter(Part.OWN) if clock.armed else None
            try:
                with edge._fetching(iterator):
                    if before is not None:
                        clock.enter(Part.ROWS if iterator._ronde_loading.proven else Part.SCRIPT)
                    data = plain_next(iterator)
            finally:  # where a sample raised, its batch is over too
                if before is not None:
                    clock.enter(before)
                asked, samples = _next_of(iterator, "_ronde_asked"), _next_of(iterator, "_ronde_counts")
            if before is not None:
                clock.enter(Part.OWN)
            data = edge._deliver(iterator, data, asked)
            if edge._context.on_main_thread():
                spent = perf_counter_ns() - begun - (comm.waited_ns - waited)
                rows = _rows(data, edge._context.batch_dim or 0) if samples is None else samples
                edge._context.tally.deliver(spent, rows)
            if before is not None:
                clock.enter(before)
            return data

        patches.set(_BaseDataLoaderIter, "__init__", init)
        patches.set(_BaseDataLoaderIter, "_reset", reset)
        patches.set(_BaseDataLoaderIter, "_next_index", next_index)
        patches.set(_BaseDataLoaderIter, "__next__", next_batch)
        patches.set(_MapDatasetFetcher, "fetch", self._watched(self._plain_fetch))

    def _watched(self, plain_fetch: Any) -> Callable[[Any, Any], Any]:
        """Reads the samples of a batch, in whatever process, and notes what that shows of them."""
        generators = HostGenerators()

        def fetch(fetcher: Any, index: Any) -> Any:
            watched, drawn = fetcher.collate_fn, torch.default_generator.get_state()
            if not isinstance(watched, _Watched) or self._is_beside():
                with self._reading():
                    data = plain_fetch(fetcher, index)
                self._notice_draws(drawn)
                return data
            before, loading = generators.state(), watched.loading
            # Another thread may draw meanwhile; torch's draws are told by thread.
            own = Drawn() if others_run() else None
            # Modules that samples go through are no models: each rank has samples of its own.
            with self._context.enter(Region.REPLICATED, None), own or nullcontext():
                asked = self._is_asked(loading)
                if asked and own is not None and _has_threads(fetcher.dataset):
                    asked, loading.flag.value = False, _BESIDE
                # What a worker changes on its copy of the dataset, no script sees.
                if asked and get_worker_info() is None:
                    data, loading.book = _booking(plain_fetch, fetcher, index)
                else:
                    data = plain_fetch(fetcher, index)
                on_host = generators.moved(before, generators.state())
                if own is None:
                    moved = bool(on_host) or not torch.equal(drawn, torch.default_generator.get_state())
                else:
                    moved = own.any or bool(on_host and on_host & loading.hosts(fetcher.dataset))
                if moved:
                    loading.flag.value = _MOVED
                elif loading.book:
                    loading.flag.value = _BOOKED
                elif loading.flag.value == _UNKNOWN:
                    still = not asked or repeats(plain_fetch, fetcher, index, data)
                    loading.flag.value = _STILL if still else _ORDERED
            return data

        return fetch

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Inside, the main thread reads samples, all of a batch on every rank."""
        before = self._context.samples
        self._context.samples = before or self._context.on_main_thread()
        try:
            yield
        finally:
            self._context.samples = before

    def _begin(self, iterator: Any, loader: Any) -> None:
        iterator._ronde_queue = collections.deque()
        iterator._ronde_asked = collections.deque()
        iterator._ronde_counts = collections.deque()
        iterator._ronde_loading = loading = self._known.setdefault(loader, self._judge(loader))
        iterator._in_order = True  # Batches in the order of arrival would differ between ranks.
        if loading.reason:
            self._say(loader.dataset, loading.reason)
        if loading.sliceable:
            iterator._collate_fn = _Watched(iterator._collate_fn, loading)

    def _is_asked(self, loading: _Loading) -> bool:
        """Whether it matters what samples are like, and is not known yet: one rank reads all, in order."""
        unknown = loading.flag.value == _UNKNOWN and not loading.proven
        return unknown and self._context.world_size > 1

    def _is_beside(self) -> bool:
        """In a thread by which the script reads batches ahead, while its main one is anywhere.

        Nothing is looked at there, and no rank agrees with another on what was seen.
        """
        return get_worker_info() is None and not self._context.on_main_thread()

    def _notice_draws(self, before: torch.Tensor) -> None:
        """A thread has read a batch; what it drew is none of a model's that runs meanwhile."""
        if self._is_beside() and not torch.equal(before, torch.default_generator.get_state()):
            self._context.others_draw = True

    def _agree(self, iterator: Any, loading: _Loading, still: bool) -> None:
        """Slice from now on if no rank has seen a reason against it: workers are not in step."""
        context = self._context
        votes = context.comm.all_reduce(torch.tensor([int(still)], device=context.comm.control_device))
        loading.proven = int(votes) == context.world_size
        if not loading.proven:
            loading.sliceable = False
            iterator._ronde_queue.clear()
            self._say(iterator._dataset, loading.shown)

    def _compare(self, iterator: Any, data: Any, asked: Asked | None) -> None:
        """Let ranks be found whose datasets differ: gathered by threads, say, or in the order of a set.

        A first batch every rank has loaded whole, but for what it was told to trust.
        """
        try:
            values = [value for value in leaves(data) if isinstance(value, torch.Tensor)]
        except Opaque:
            return
        comm = self._context.comm
        flags, digest = unlike(comm, values)
        if not any(flags):
            return
        # A sample may tell when it was loaded, and padding is what was in memory: that comes out otherwise
        # when the same samples are read again.
        otherwise = apart(values, self._read_again(iterator, asked))
        count = len(values)
        unknown, *votes = comm.votes(
            [otherwise is None, *(otherwise or [False] * count), *(_varies(value) for value in values)]
        )
        columns = list(zip(flags, votes[:count], votes[count:], strict=True))
        # What is the same in all samples is no order of theirs: the number of the process, say.
        repeated = not unknown and any(differs and varies and not moved for differs, moved, varies in columns)
        # Nor does it tell, where ranks have it alike, that the samples are the same.
        if repeated or not any(varies and not differs for differs, _, varies in columns):
            end(comm, f"a first batch ({digest})")

    def _read_again(self, iterator: Any, asked: Asked | None) -> list[Any] | None:
        """Each rank reads what may be other samples, in other files; modules in there are no models.

        Not where threads or processes of the script may give each sample once: nobody would give it again.
        """
        if asked is None or self._context.others_began:
            return None
        with self._unmediated(), self._context.enter(Region.REPLICATED, None):
            read = read_again(self._plain_fetch, iterator, asked)
        return read and [value for value in read if isinstance(value, torch.Tensor)]

    def _say(self, dataset: Any, reason: str) -> None:
        self._context.note(f"{type(dataset).__name__}: every rank loads whole batches, because {reason}")

    def _fetching(self, iterator: Any) -> AbstractContextManager[Any]:
        """Ranks are out of step while each loads samples of its own in this very process."""
        if not hasattr(iterator, "_ronde_loading"):
            raise UsageError(
                "this iterator of a DataLoader was made before ronde.init(), and its batches may differ "
                "between ranks; call iter(loader) after ronde.init()"
            )
        loading: _Loading = iterator._ronde_loading
        return self._unmediated() if loading.proven and not iterator._num_workers else nullcontext()

    def _judge(self, loader: Any) -> _Loading:
        if self._loading == "full":
            return _Loading()
        if loader._dataset_kind != _DatasetKind.Map:
            return _Loading("an iterable dataset has no indices to be cut")
        if not loader._auto_collation:
            return _Loading("the loader makes no batches of samples")
        if self._loading == "sliced":
            return _Loading(sliceable=True, always=True)
        if loader.num_workers and _start_method(loader) != "fork":
            return _Loading("its workers are not forked, and what they do is not seen")
        if loader.collate_fn is not default_collate:
            return _Loading("its collate_fn may look at all samples, to pad them say")
        if _uses_generator(loader.dataset):
            return _Loading("it uses a random generator of its own")
        return _Loading(sliceable=True)

    def _mark(self, index: Any) -> None:
        """Let ranks be found whose samplers drew different batches."""
        known = type(index) is list and index and all(type(each) is int for each in index)
        if known and self._context.on_main_thread():
            first = ", ".join(map(str, index[:3]))
            digest = hash(tuple(index)) & 0xFFFFFFFF
            self._context.comm.mark(f"batch of {len(index)} samples: {first}, ... (digest {digest:08x})")

    def _cut(self, iterator: Any, index: Any) -> Any:
        """This rank's part of an index batch, and a note in the queue of how it was cut."""
        loading: _Loading = iterator._ronde_loading
        if not loading.sliceable:
            return index
        whole = list(index)
        if not self._may_cut(loading) or len(whole) < self._context.world_size:
            iterator._ronde_queue.append((len(whole), False))
            return whole
        iterator._ronde_queue.append((len(whole), True))
        start, stop = self._context.layout(0, len(whole)).bounds(self._context.rank)
        return whole[start:stop]

    def _may_cut(self, loading: _Loading) -> bool:
        """What a thread reads stays whole unless samples are trusted: they are not looked at there."""
        return loading.proven and (self._loading == "sliced" or not self._is_beside())

    def _deliver(self, iterator: Any, data: Any, asked: Asked | None) -> Any:
        loading: _Loading = iterator._ronde_loading
        if not loading.compared and self._context.on_main_thread():
            loading.compared = True
            self._compare(iterator, data, asked)
        if not loading.sliceable or not iterator._ronde_queue:
            return data
        rows, sliced = iterator._ronde_queue.popleft()
        if self._loading == "auto" and loading.flag.value == _MOVED:
            if sliced or any(cut for _, cut in iterator._ronde_queue):
                raise RondeError(
                    f"the dataset {type(iterator._dataset).__name__} began to draw random numbers after "
                    f"batches without; its slices would differ from the single-device batches. "
                    f"Use --loading full"
                )
            still = False
        else:
            still = loading.flag.value == _STILL and _is_batch(data, rows)
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
    """Small integers: a loss will ask how many of them count, for which every rank needs all."""
    small = value[0].numel() * rows * value.element_size() <= _AHEAD_BYTES
    return small and value.dtype in (torch.int64, torch.int32, torch.uint8)


def _varies(value: torch.Tensor) -> bool:
    """Whether its elements are not all the same."""
    return value.layout is torch.strided and value.numel() > 1 and bool((value != value.flatten()[0]).any())


def _start_method(loader: Any) -> str | None:
    context = loader.multiprocessing_context
    return (context or multiprocessing).get_start_method()


def _is_batch(data: Any, rows: int) -> bool:
    """Whether every leaf is a tensor with a row for each sample."""
    try:
        found = list(leaves(data))
    except Opaque:
        return False
    return all(
        isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == rows and not _is_marked(value)
        for value in found
    )


def _is_marked(value: torch.Tensor) -> bool:
    """Whether a batch has a class of its own, or something written on it: rows would lose that."""
    return own_class(value) is not None or bool(written(value))


def _samples(iterator: Any, index: Any) -> int | None:
    """How many samples are asked for at once; None where that is not told, or each may be a batch."""
    known = iterator._dataset_kind == _DatasetKind.Map and isinstance(index, list) and len(index) > 1
    return len(index) if known else None


def _next_of(iterator: Any, queue: str) -> Any:
    """What was noted in this queue of the batch that has come: how it was read, or of how many samples."""
    noted: collections.deque[Any] = getattr(iterator, queue, collections.deque())
    return noted.popleft() if noted else None


def _rows(data: Any, dim: int) -> int | None:
    """Of the first tensor in a batch, None where there is none to begin with."""
    entries = (
        data.values() if isinstance(data, Mapping) else data if isinstance(data, (list, tuple)) else (data,)
    )
    for value in entries:
        if isinstance(value, GlobalTensor):
            return value._layout.rows
        if isinstance(value, torch.Tensor):
            return value.shape[dim] if value.dim() > dim else None
    return None


def _uses_generator(dataset: Any) -> bool:
    """Whether a dataset or its code, transforms and closures among it, uses a random generator of its own."""
    return not all(map(is_of_process, _reached(dataset).generators()))


def _reached(dataset: Any) -> Reach:
    """What a dataset and its code lead to, objects of libraries among it."""
    reach = Reach(libraries=True)
    reach.visit(dataset)
    return reach


def _has_threads(dataset: Any) -> bool:
    """Whether threads work for a dataset, so that it changes by itself."""
    return reads_ahead_for(dataset, _reached(dataset))


def _booking(fetch: Callable[..., Any], fetcher: Any, index: Any) -> tuple[Any, str]:
    """A batch, and a part of a sentence: what reading one sample more does beside, empty for nothing.

    What the first sample makes for all that follow (it opens a file, it reads a table) is no book.
    """
    together = len(index) == 1 or _reads_together(fetcher.dataset)
    alone = copy.copy(fetcher)
    alone.collate_fn = list
    first = [] if together else fetch(alone, index[:1])
    holdings = Holdings(fetcher.dataset)
    ear = _Ear(sys.stdout)
    with redirected("stdout", ear):
        samples = fetch(fetcher, index) if together else first + fetch(alone, index[1:])
    changed = holdings.changed()
    if changed:
        beside = f"reading samples changes {changed}, which the script may read"
    else:
        beside = "reading samples prints" if ear.heard else ""
    return samples if together else fetcher.collate_fn(samples), beside


class _Ear:
    """Standard output, and whether something was written there."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self.heard = False

    def write(self, text: str) -> Any:
        self.heard = True
        return self._out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


def _reads_together(dataset: Any) -> bool:
    """Whether it gives all samples of a batch at once, and not only because it is a part of another."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))
