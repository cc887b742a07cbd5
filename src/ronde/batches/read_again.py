"""What was read of a data set, read once more and unnoticed: is a sample told by its index?

Or also by when it is read, by what was in memory, by what was read before it: then it comes out otherwise.
"""

from __future__ import annotations

import dataclasses
import io
import multiprocessing.connection
import multiprocessing.managers
import multiprocessing.queues
import queue
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data._utils.worker import _generate_state
from torch.utils.data.dataloader import _DatasetKind

from ronde.boundary.reach import Reach
from ronde.boundary.ways_back import restored
from ronde.patching.muted_warnings import muted_warnings
from ronde.patching.other_threads import others_run
from ronde.patching.thread_stream import redirected
from ronde.rng.named_hosts import HOSTS, hosts_in_samples
from ronde.rng.random_state import host_states, preserved_random_state, put_back
from ronde.tensor.tree import leaves

__all__ = ["Asked", "read_again", "repeats"]

_Fetch = Callable[[Any, Any], Any]
_GIVE_ONCE = (
    *(
        Iterator,
        queue.Queue,
        queue.SimpleQueue,
        multiprocessing.queues.Queue,
        multiprocessing.queues.SimpleQueue,
    ),
    *(multiprocessing.connection._ConnectionBase, multiprocessing.managers.BaseProxy, socket.socket),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """An index batch, and the generators as they were when it was asked for."""

    index: Any
    drawn: torch.Tensor = dataclasses.field(default_factory=torch.get_rng_state)
    hosts: tuple[Any, Any] = dataclasses.field(default_factory=host_states)

    def put_back(self, iterator: Any) -> None:
        """Let this thread draw what was drawn for the batch: by the first worker, where there are some."""
        if not iterator._num_workers:
            torch.set_rng_state(self.drawn)
            put_back(self.hosts, HOSTS)
            return
        seed = iterator._base_seed
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(_generate_state(seed, 0))


def read_again(fetch: _Fetch, iterator: Any, asked: Asked) -> list[Any] | None:
    """What is in a batch, read once more in this process; None where that cannot be done.

    Memory that nothing was written to is filled with something else than before.
    """
    if iterator._dataset_kind != _DatasetKind.Map:
        return None
    dataset, collate = iterator._dataset, iterator._collate_fn
    fetcher = _MapDatasetFetcher(dataset, iterator._auto_collation, collate, iterator._drop_last)
    try:
        with _unnoticed(dataset), redirected("stdout", io.StringIO()), _filled():
            if others_run():  # what they draw meanwhile must not be undone
                return list(leaves(fetch(fetcher, asked.index)))
            before = Asked(asked.index)
            asked.put_back(iterator)
            try:
                return list(leaves(fetch(fetcher, asked.index)))
            finally:
                torch.set_rng_state(before.drawn)
                put_back(before.hosts, HOSTS)
    except Exception:
        return None


def repeats(fetch: _Fetch, fetcher: Any, index: Any, data: Any) -> bool:
    """Whether a batch's first sample comes out the same when it is read again, alone and unnoticed."""
    try:
        with _unnoticed(fetcher.dataset):
            alone = list(leaves(fetch(fetcher, list(index)[:1])))
        batch = list(leaves(data))
        if not all(isinstance(value, torch.Tensor) and value.dim() for value in batch):
            return True  # it will not be cut
        return len(alone) == len(batch) and all(map(_same_row, alone, batch))
    except Exception:
        return False


class _GoesOn(Exception):
    """Something goes on when it is used, and cannot be put back."""


@contextmanager
def _unnoticed(dataset: Any) -> Iterator[None]:
    """Whatever is read inside, a data set and the generators are afterwards as they were.

    Raises:
        _GoesOn: where that cannot be, because it has an iterator; a file is read at a place.
    """
    reach = Reach()
    reach.visit(dataset)
    values = [value for _, value in reach.values]
    if any(map(_goes_on, values)):
        raise _GoesOn
    with restored(reach.places, values), preserved_random_state(hosts_in_samples(reach)):
        yield


def _goes_on(value: Any) -> bool:
    """Whether it gives each thing once; a file is read at a place, which can be put back."""
    return isinstance(value, _GIVE_ONCE) and not isinstance(value, io.IOBase)


@contextmanager
def _filled() -> Iterator[None]:
    """Inside, torch fills new memory. By its own functions, as the public one imports the compiler."""
    core: Any = torch._C
    before, warns, fills = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        core._get_deterministic_fill_uninitialized_memory(),
    )
    with muted_warnings():
        core._set_deterministic_algorithms(True, warn_only=True)
        core._set_deterministic_fill_uninitialized_memory(True)
        try:
            yield
        finally:
            core._set_deterministic_algorithms(before, warn_only=warns)
            core._set_deterministic_fill_uninitialized_memory(fills)


def _same_row(alone: torch.Tensor, batch: torch.Tensor) -> bool:
    a, b = alone[:1], batch[:1]
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())
