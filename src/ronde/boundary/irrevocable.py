"""What has no way back: it goes on when it is used, or writes where others read."""

from __future__ import annotations

import concurrent.futures
import contextvars
import io
import multiprocessing.connection
import multiprocessing.managers
import multiprocessing.pool
import multiprocessing.queues
import multiprocessing.sharedctypes
import multiprocessing.synchronize
import queue
import socket
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any

from ronde.boundary.weak_references import behind

__all__ = ["irrevocable_among"]


def irrevocable_among(values: Iterable[tuple[str, Any]]) -> str:
    """The first that cannot go back, in words: an iterator, an open file, a queue; "" without one."""
    # By the class itself: an object may say something else, or raise, when it is asked for its class.
    found = ((name, held) for name, value in values if _is_irrevocable(held := behind(value)))
    return next((f"the {_named(type(value))} {name}" for name, value in found), "")


def _named(kind: type) -> str:
    """Not "generator", which would be taken for one of random numbers."""
    return "iterator" if kind is types.GeneratorType else kind.__name__


def _is_irrevocable(value: Any) -> bool:
    if isinstance(value, contextvars.ContextVar):  # none that was set can be as if it never had been
        return value.get(_UNSET) is _UNSET
    if isinstance(value, types.ModuleType):
        return value.__name__ in _TRACKERS
    if any((each.__module__.partition(".")[0], each.__name__) in _KEEPERS for each in type(value).__mro__):
        return True
    return issubclass(type(value), _IRREVOCABLE)


_UNSET = object()
# By package and name: they need not be imported to be known.
_KEEPERS = {
    *(("sqlite3", "Connection"), ("pandas", "DataFrame"), ("pandas", "Series"), ("polars", "DataFrame")),
    *(("_csv", "writer"), ("csv", "DictWriter"), ("zipfile", "ZipFile"), ("tarfile", "TarFile")),
    *(
        ("shelve", "Shelf"),
        ("h5py", "HLObject"),
        ("zarr", "Array"),
        ("zarr", "Group"),
        ("lmdb", "Transaction"),
    ),
    *(
        ("torch", "SummaryWriter"),
        ("tensorboardX", "SummaryWriter"),
        ("wandb", "Run"),
        ("mlflow", "MlflowClient"),
    ),
    *(("tqdm", "tqdm"), ("rich", "Progress"), ("rich", "Live"), ("rich", "Status")),
}
# Modules whose functions log to a run that is the only one.
_TRACKERS = {"wandb", "mlflow"}
# What is handed to others in these is gone.
_IRREVOCABLE = (
    *(Iterator, io.IOBase, queue.Queue, queue.SimpleQueue, threading.Semaphore, concurrent.futures.Executor),
    *(multiprocessing.queues.Queue, multiprocessing.queues.SimpleQueue, multiprocessing.pool.Pool),
    *(multiprocessing.connection.Connection, multiprocessing.synchronize.SemLock, socket.socket),
    *(multiprocessing.sharedctypes.SynchronizedBase, multiprocessing.managers.BaseProxy),
)
