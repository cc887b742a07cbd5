"""How the ranks meet over a file: the protocol, and its implementation over a communicator."""

from __future__ import annotations

import time
from time import perf_counter_ns  # bound here: the module's own is replaced for scripts
from typing import Any, Protocol

from ronde.errors import PeerLost

__all__ = ["Communicator", "Meeting", "StoreMeeting"]


class Meeting(Protocol):
    """What file mediation needs of the other ranks. Rank 0 is the main rank.

    `barrier` and `share` are collective. `publish` (main rank) and `wait` (the others) are one-sided,
    because a rank may read a file that the others do not read: loaders cut batches by rank.
    """

    def barrier(self) -> None: ...

    def share(self, value: Any) -> Any:
        """The main rank's `value`, on every rank."""
        ...

    def publish(self, key: str, count: int) -> None:
        """Tell that `key` has come to `count`; counts of a key only grow."""
        ...

    def wait(self, key: str, count: int) -> None:
        """Return when `key` has come to `count` or beyond; raise `PeerLost` after the time limit."""
        ...

    def tell(self, key: str, text: str) -> None:
        """Leave word for whoever asks."""
        ...

    def told(self, key: str) -> str | None:
        """What was left as word, if any is there by now."""
        ...


class Communicator(Protocol):
    """The part of a communicator that is used here."""

    @property
    def store(self) -> Any:
        """A `torch.distributed.Store`, of which `set`, `get` and `check` are used."""
        ...

    def barrier(self) -> None: ...
    def broadcast_object(self, value: Any, /, source: int = 0) -> Any: ...


class StoreMeeting:
    """Meet by a communicator's collectives and its key-value store.

    Waiting polls: a blocking `Store.wait` would hold the store's lock and keep Ctrl-C out, and the
    one key per file that polling allows keeps the store from growing with every flush.

    `waited_ns`: nanoseconds that this rank has spent waiting for files.
    """

    def __init__(self, comm: Communicator, *, timeout: float = 300.0, prefix: str = "ronde/files") -> None:
        self._comm = comm
        self._timeout = timeout
        self.waited_ns = 0
        self._prefix = prefix

    def be_patient(self) -> None:
        """From now on wait as long as it takes: a user sits in a debugger on another rank."""
        self._timeout = float("inf")

    def barrier(self) -> None:
        self._comm.barrier()

    def share(self, value: Any) -> Any:
        return self._comm.broadcast_object(value, source=0)

    def publish(self, key: str, count: int) -> None:
        self._comm.store.set(f"{self._prefix}/{key}", str(count))

    def tell(self, key: str, text: str) -> None:
        self._comm.store.set(f"{self._prefix}/word/{key}", text)

    def told(self, key: str) -> str | None:
        name = f"{self._prefix}/word/{key}"
        return self._comm.store.get(name).decode() if self._comm.store.check([name]) else None

    def wait(self, key: str, count: int) -> None:
        name = f"{self._prefix}/{key}"
        begun = perf_counter_ns()
        pause = 0.0002
        while not (self._comm.store.check([name]) and int(self._comm.store.get(name)) >= count):
            if perf_counter_ns() - begun > self._timeout * 1e9:
                raise PeerLost(
                    f"The main rank did not finish writing {key!r} within {self._timeout:.0f} s. "
                    f"It failed, or it takes another path than this rank."
                )
            time.sleep(pause)
            pause = min(pause * 2, 0.01)
        self.waited_ns += perf_counter_ns() - begun
