"""Inspection of samples: decides whether each rank may read only its own.

The first batch is read whole by every rank, and inspected. Samples that draw random numbers, that depend on
samples read before them or with them, or that record their reads, are read whole from then on.
"""

from __future__ import annotations

import copy
import enum
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils.data import Subset, get_worker_info

from ronde.batches.dataset_snapshot import DatasetSnapshot
from ronde.patching.other_threads import others_run
from ronde.rng.host_generators import HostGenerators
from ronde.rng.random_state import DrawDetector, preserved_random_state
from ronde.tensor.tree import leaves

__all__ = ["Loading", "Shown", "Watched", "watched"]

_Fetch = Callable[[Any, Any], Any]


class Shown(enum.IntEnum):
    """Finding about a loader's samples.

    `LOST`: their order matters, and the change of the dataset's state cannot be undone.
    """

    UNKNOWN, STILL, DRAWS, OWN_GENERATOR, ORDERED, BOOKED, LOST = range(7)


_WHY = {
    Shown.STILL: "its batches hold other values than one row of a tensor for each sample [R361]",
    Shown.DRAWS: "its samples draw random numbers [R361]",
    Shown.OWN_GENERATOR: "it uses a random generator of its own [R361]",
    Shown.ORDERED: "a sample depends on the order in which samples are read, or on those read with it [R362]",
}


class Loading:
    """State of one loader: whether its batches may be sliced, or the reason against.

    Attributes:
        flag: the finding of any fetching process.
        book: description of the changes that reading makes to the dataset in this process.
        compared: whether ranks have compared their first batches.
    """

    def __init__(self, reason: str = "", *, sliceable: bool = False, always: bool = False) -> None:
        self.flag: Any = multiprocessing.RawValue("b", Shown.UNKNOWN)
        self.book = ""
        self.reason = reason
        self.sliceable = sliceable
        self.proven = self.compared = always

    @property
    def why_whole(self) -> str:
        """The reason, found while fetching, why batches are not cut."""
        return self.book or _WHY.get(self.flag.value, _WHY[Shown.STILL])


class Watched:
    """A collate function with its loader's state, for fetching processes."""

    def __init__(self, collate: Callable[[Any], Any], loading: Loading) -> None:
        self.collate = collate
        self.loading = loading

    def __call__(self, samples: Any) -> Any:
        return self.collate(samples)


def watched(fetch: _Fetch, *, asks: bool) -> Callable[[Any, Any, Loading], Any]:
    """Wrap `fetch`, to read the samples of a batch and record findings.

    Args:
        asks: whether findings matter; they do not for a single rank, which reads all samples in order.
    """
    generators = HostGenerators()

    def read(fetcher: Any, index: Any, loading: Loading) -> Any:
        if loading.flag.value == Shown.DRAWS:
            return fetch(fetcher, index)
        first = asks and loading.flag.value == Shown.UNKNOWN and not loading.proven
        before, drawn = generators.state(), torch.default_generator.get_state()
        # Another thread may draw meanwhile: torch's draws are told apart by thread.
        own = DrawDetector() if others_run() else None
        held = None
        with own or nullcontext():
            if first:
                data, held, loading.book = _looked_at(fetch, fetcher, index)
            else:
                data = fetch(fetcher, index)
        moved = generators.moved(before, generators.state())
        if own is None:
            moved = moved or not torch.equal(drawn, torch.default_generator.get_state())
        elif moved and not first:  # reading a sample again shows which thread drew
            moved = own.any or not _repeats(fetch, fetcher, index, data, [])
        else:
            moved = moved or own.any
        if moved:
            loading.flag.value = Shown.DRAWS
        elif held is not None:
            loading.flag.value = _shown(fetch, fetcher, index, data, held, loading.book)
        elif loading.flag.value == Shown.UNKNOWN:
            loading.flag.value = Shown.STILL
        return data

    return read


def _shown(fetch: _Fetch, fetcher: Any, index: Any, data: Any, held: DatasetSnapshot, book: str) -> int:
    """Return the finding for a batch that was read without default generators."""
    if held.drew():
        return Shown.OWN_GENERATOR
    if book:
        return Shown.BOOKED
    if held.gives_once:
        return Shown.ORDERED
    changes = bool(held.changed())
    if _repeats(fetch, fetcher, index, data, held.files):
        return Shown.STILL
    return Shown.LOST if changes else Shown.ORDERED


def _looked_at(fetch: _Fetch, fetcher: Any, index: Any) -> tuple[Any, DatasetSnapshot, str]:
    """Read a batch; return it, the dataset's state, and its changes in words.

    Changes that only the first sample makes (it opens a file, it reads a table) do not count. The script does
    not see a worker's changes to its copy of the dataset.
    """
    together = len(index) == 1 or _reads_together(fetcher.dataset)
    alone = copy.copy(fetcher)
    alone.collate_fn = list
    first = [] if together else fetch(alone, index[:1])
    held = DatasetSnapshot(fetcher.dataset)
    samples = fetch(fetcher, index) if together else first + fetch(alone, index[1:])
    changed = held.changed() if get_worker_info() is None else ""
    book = (
        f"reading samples changes {changed} of the dataset, and the script may read that [R363]"
        if changed
        else ""
    )
    return samples if together else fetcher.collate_fn(samples), held, book


def _reads_together(dataset: Any) -> bool:
    """Return whether the dataset itself reads all samples of a batch at once.

    A `Subset` counts as its inner dataset.
    """
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))


def _repeats(fetch: _Fetch, fetcher: Any, index: Any, data: Any, files: list[Any]) -> bool:
    """Return whether a batch's first sample is equal when read again, alone."""
    try:
        with _where_they_are(files), preserved_random_state():
            alone = list(leaves(fetch(fetcher, list(index)[:1])))
        batch = list(leaves(data))
        if not all(isinstance(value, torch.Tensor) and value.dim() for value in batch):
            return True  # such a batch will not be cut
        return len(alone) == len(batch) and all(map(_same_row, alone, batch))
    except Exception:
        return False


@contextmanager
def _where_they_are(files: list[Any]) -> Iterator[None]:
    """Restore the positions of files on exit."""
    places = [(file, file.tell()) for file in files if not file.closed and file.seekable()]
    try:
        yield
    finally:
        for file, place in places:
            file.seek(place)


def _same_row(alone: torch.Tensor, batch: torch.Tensor) -> bool:
    a, b = alone[:1], batch[:1]
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())
