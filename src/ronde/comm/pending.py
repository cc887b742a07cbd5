"""Handles of collectives and messages under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Arriving", "Pending"]


class _Waits(Protocol):
    """Group of a collective, as its handle uses it."""

    def block(self, work: Callable[[], Any], number: int = 0) -> Any: ...

    def tell(self, operation: str, begun: int, nbytes: int) -> None: ...


class Pending:
    """A collective under way; `wait` returns when the tensor may be read.

    Args:
        comm: the group of the collective.
        work: the backend's handle; None where nothing was sent.
        number: the number of the wait on the lockstep board.
        finish: function to call on completion.
        started: name of the collective, start in nanoseconds, and bytes, for the group's listener.
    """

    __slots__ = ("_comm", "_finish", "_number", "_started", "_work")

    def __init__(
        self,
        comm: _Waits,
        work: Any,
        number: int = 0,
        finish: Callable[[], None] | None = None,
        started: tuple[str, int, int] | None = None,
    ) -> None:
        self._comm = comm
        self._work = work
        self._number = number
        self._finish = finish
        self._started = started

    def then(self, finish: Callable[[], None]) -> Pending:
        """Return the same collective, with a further function to call on completion."""
        first = self._finish

        def both() -> None:
            if first is not None:
                first()
            finish()

        return Pending(self._comm, self._work, self._number, both, self._started)

    def wait(self) -> None:
        """Wait for completion; a second call does nothing."""
        if self._work is not None:
            self._comm.block(self._work.wait, self._number)
            self._work = None
        if self._started is not None:
            self._comm.tell(*self._started)
            self._started = None
        if self._finish is not None:
            self._finish()
            self._finish = None


class Arriving:
    """A message that is received in its `wait`."""

    def __init__(self, receive: Callable[[], object]) -> None:
        self.wait = receive
