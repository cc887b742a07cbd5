"""Meter of the time in which batches are loaded, waited for and used."""

from __future__ import annotations

import collections
import dataclasses
import multiprocessing
from collections.abc import Callable

# Bound at import: the module's own are replaced for scripts.
from time import perf_counter_ns, process_time_ns
from typing import Any

import torch
from torch.utils.data import get_worker_info

from ronde.cluster.cores import available_cores, queued_ns
from ronde.patching.patches import Patches
from ronde.patching.stacks import NEXT_BATCH
from ronde.patching.torch_internals import BaseDataLoaderIter, IterableDatasetFetcher, MapDatasetFetcher
from ronde.tensor.global_tensor import cuts_rows
from ronde.tensor.tree import Opaque, leaves
from ronde.trace.loader_advice import LoaderTimes, advice, is_much

__all__ = ["LoaderMeter"]

# Bytes a second, less than any link to a device.
_SLOWEST_COPY = 2e9
_SLOT = 3  # samples, nanoseconds and processor nanoseconds of a worker


class LoaderMeter:
    """Measures loaders in the main thread and in forked workers.

    Loaders of one dataset class with equal settings count as one: a script may make them anew in each epoch.

    Args:
        in_step: function that tells whether the current thread is the main one.
        waited: nanoseconds that this rank has waited for others so far.
        copy: function that measures the seconds in which so many bytes are copied to the device, from pinned
            memory or not; None without a device.
    """

    def __init__(
        self,
        in_step: Callable[[], bool],
        waited: Callable[[], int],
        copy: Callable[[int, bool], float] | None,
    ) -> None:
        self._in_step, self._waited, self._copy = in_step, waited, copy
        self._counts: dict[tuple[Any, ...], _Counts] = {}
        # Of the iterator that began last: a forked worker is that one's.
        self._last: _Counts | None = None

    def install(self, patches: Patches) -> None:
        meter = self
        plain_init: Any = BaseDataLoaderIter.__init__
        plain_reset: Any = BaseDataLoaderIter._reset
        plain_index: Any = BaseDataLoaderIter._next_index

        def init(iterator: Any, loader: Any) -> None:
            meter._begin(iterator, loader)
            plain_init(iterator, loader)

        def reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            iterator._ronde_left = None
            plain_reset(iterator, loader, first_iter)

        def next_index(iterator: Any) -> Any:
            index = plain_index(iterator)
            iterator._ronde_counts.shares[_samples(index)] += 1
            return index

        def around(plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def next_batch(iterator: Any) -> Any:
                counts: _Counts | None = getattr(iterator, "_ronde_counts", None)
                if counts is None or not meter._in_step():
                    return plain(iterator)
                asked, ran, waited = perf_counter_ns(), process_time_ns(), meter._waited()
                data = plain(iterator)
                now, ran_now = perf_counter_ns(), process_time_ns()
                spent = now - asked - (meter._waited() - waited)
                counts.arrived(iterator._ronde_left, (asked, ran), spent, ran_now - ran)
                if meter._copy is not None and iterator._ronde_left is None and not iterator._pin_memory:
                    counts.size = _bytes_of(data)
                iterator._ronde_left = (now, ran_now)
                return data

            return next_batch

        patches.set(BaseDataLoaderIter, "__init__", init)
        patches.set(BaseDataLoaderIter, "_reset", reset)
        patches.set(BaseDataLoaderIter, "_next_index", next_index)
        patches.layer(NEXT_BATCH, "meter", around)
        for fetcher in (MapDatasetFetcher, IterableDatasetFetcher):
            patches.set(fetcher, "fetch", self._timed(fetcher.fetch))

    def advice(self, ranks: int, begun_ns: int) -> list[str]:
        """Return a note on a setting of a loader that would save much time.

        Args:
            ranks: number of ranks that share the cores of this host.
            begun_ns: clock of the beginning of the run.
        """
        seconds = (perf_counter_ns() - begun_ns) / 1e9
        times = [self._with_copies(each, seconds) for each in self.times()]
        found = advice(times, cores=available_cores() / ranks, seconds=seconds)
        return [found] if found else []

    def _with_copies(self, times: LoaderTimes, seconds: float) -> LoaderTimes:
        """Measure the copy of a batch to the device, where it may matter."""
        most = times.batches * times.size / _SLOWEST_COPY
        if self._copy is None or not times.workers or not is_much(most, seconds):
            return times
        pageable, pinned = (self._copy(times.size, each) for each in (False, True))
        return dataclasses.replace(times, copied=pageable, copied_pinned=pinned)

    def times(self) -> list[LoaderTimes]:
        """Return the times of all loaders that delivered batches after their first."""
        return [counts.times() for counts in self._counts.values() if counts.batches]

    def _begin(self, iterator: Any, loader: Any) -> None:
        named = (
            type(loader.dataset).__name__,
            loader.num_workers,
            loader.persistent_workers,
        )
        # Evaluation uses batches in another time.
        key = (*named, loader.batch_size, torch.is_grad_enabled())
        iterator._ronde_left = None
        iterator._ronde_counts = self._counts.get(key) or self._counts.setdefault(key, _Counts(*named))
        self._last = iterator._ronde_counts

    def _timed(self, plain_fetch: Any) -> Callable[[Any, Any], Any]:
        """Wrap the fetch of samples, to be measured in workers."""

        def fetch(fetcher: Any, index: Any) -> Any:
            worker = get_worker_info()
            counts = self._last
            if worker is None or counts is None or worker.id >= counts.workers:
                return plain_fetch(fetcher, index)
            begun, ran = perf_counter_ns(), process_time_ns()
            data = plain_fetch(fetcher, index)
            counts.loaded(worker.id, _samples(index), perf_counter_ns() - begun, process_time_ns() - ran)
            return data

        return fetch


class _Counts:
    """Sums of a loader's times in nanoseconds.

    Attributes:
        shares: number of index batches by the samples that this rank loads.
        batches: number of batches that followed another one.
        size: bytes of this rank's part of a batch that is not pinned.
    """

    def __init__(self, dataset: str, workers: int, persistent: bool) -> None:
        self.dataset, self.workers, self.persistent = dataset, workers, persistent
        self.shares: collections.Counter[int] = collections.Counter()
        self.epochs = self.batches = self.size = 0
        self._used = self._waited = self._first = self._used_ran = self._waited_ran = 0
        self._begun, self._queued = perf_counter_ns(), queued_ns()
        # Of workers: each writes its own numbers only.
        self._loads: Any = multiprocessing.RawArray("q", _SLOT * workers) if workers else None

    def arrived(
        self,
        left: tuple[int, int] | None,
        asked: tuple[int, int],
        waited: int,
        waited_ran: int,
    ) -> None:
        """Count a batch.

        Args:
            left: the clock and the processor's clock when the batch before was delivered; None for the
                first.
            asked: the same when this one was asked for.
            waited: nanoseconds until it was there.
            waited_ran: processor time of this process meanwhile.
        """
        if left is None:
            self.epochs += 1
            self._first += waited
            return
        self.batches += 1
        used, ran = (after - before for before, after in zip(left, asked, strict=True))
        self._used += used
        self._used_ran += ran
        self._waited += waited
        self._waited_ran += waited_ran

    def loaded(self, worker: int, samples: int, spent: int, ran: int) -> None:
        """Count a batch that a worker has loaded."""
        for place, more in enumerate((samples, spent, ran)):
            self._loads[_SLOT * worker + place] += more

    def times(self) -> LoaderTimes:
        used, waited = self._mean(self._used), self._mean(self._waited)
        ran, ran_in_wait = self._mean(self._used_ran), self._mean(self._waited_ran)
        loading, processor = self._loading(used + waited)
        return LoaderTimes(
            dataset=self.dataset,
            workers=self.workers,
            persistent=self.persistent,
            epochs=self.epochs,
            batches=self.batches,
            used=used,
            waited=waited,
            first=self._first / max(1, self.epochs) / 1e9,
            loading=loading if self.workers else waited,
            loading_processor=processor if self.workers else ran_in_wait,
            script_processor=ran + ran_in_wait if self.workers else ran,
            queued=(queued_ns() - self._queued) / (perf_counter_ns() - self._begun),
            size=self.size,
        )

    def _loading(self, whole: float) -> tuple[float, float]:
        """Return wall and processor seconds in which a worker loads a batch.

        Workers that were not forked are not measured: as if they were never idle.
        """
        samples, spent, ran = (sum(self._loads[place::_SLOT]) if self._loads else 0 for place in range(_SLOT))
        if not samples:
            return whole * self.workers, whole * self.workers
        ((share, _),) = self.shares.most_common(1) or ((1, 0),)
        return share * spent / samples / 1e9, share * ran / samples / 1e9

    def _mean(self, total: int) -> float:
        return total / max(1, self.batches) / 1e9


def _bytes_of(batch: Any) -> int:
    """Return the bytes of a batch's tensors on this rank."""
    try:
        held = [value._local if cuts_rows(value) else value for value in leaves(batch)]
    except Opaque:
        return 0
    return sum(value.nbytes for value in held if isinstance(value, torch.Tensor))


def _samples(index: Any) -> int:
    return len(index) if isinstance(index, (list, tuple)) else 1
