"""Finds ranks that diverge, at their first different operation and before they wait."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from ronde.errors import DivergedError
from ronde.trace.exchange_label import ExchangeLabel
from ronde.trace.lockstep_board import BoardEntry, LockstepBoard
from ronde.trace.script_line import ScriptLine

__all__ = ["LockstepCheck"]

_MOST_NAMES = 4096


class LockstepCheck:
    """Records this rank's collective operations on a board, and compares.

    Args:
        board: the board that the ranks of this host share.
        first_rank: number of the host's first rank among all ranks.
        own_file: function that returns whether a source file has another name on each rank, as code that a
            library writes to a temporary file and imports. In its place the line that called it is compared.

    Attributes:
        last: the number of collectives to which this rank came last of its host.
        late_ns: sum of the nanoseconds by which this rank then came after the last but one.
    """

    def __init__(
        self, board: LockstepBoard, *, first_rank: int, own_file: Callable[[str], bool] | None = None
    ) -> None:
        self._board = board
        self._first_rank = first_rank
        self._lines = ScriptLine(os.path.dirname(torch.__file__), passes_over=own_file)
        self._names: dict[tuple[str, torch.dtype, torch.Size], str] = {}
        self._process = os.getpid()
        self._thread = threading.get_ident()
        self._place = ""
        self.last = self.late_ns = 0

    @contextmanager
    def anywhere(self, place: str) -> Iterator[None]:
        """Compare ranks at any line inside the `with` block.

        Messages have `place` instead of a line.
        """
        before, self._place = self._place, place
        try:
            yield
        finally:
            self._place = before

    def collective(self, operation: str, tensor: torch.Tensor) -> int:
        """Record that this rank will send `tensor`; return the number to wait under.

        Raises:
            DivergedError: a peer does something else.
        """
        key = (operation, tensor.dtype, tensor.shape)
        name = self._names.get(key)
        if name is None:
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            dtype = str(tensor.dtype).removeprefix("torch.")
            name = self._names[key] = str(ExchangeLabel(operation, f"{dtype} {list(tensor.shape)}"))
        number = self._compare(name)
        late = self._board.lateness(number)
        if late is not None:
            self.last += 1
            self.late_ns += int(late * 1e9)
        return number

    def mark(self, what: str) -> None:
        """Record an operation that peers must do as well though nothing is sent.

        It has no effect in a process that the rank has forked.
        """
        if os.getpid() == self._process:
            self._compare(what)

    @contextmanager
    def at_one_line(self) -> Iterator[None]:
        """Report the script's current line for all code inside the `with` block."""
        before, self._place = self._place, self._where()
        try:
            yield
        finally:
            self._place = before

    def waits(self, number: int) -> None:
        self._board.waits(number)

    def goes_on(self) -> None:
        self._board.goes_on()

    def explain(self) -> DivergedError | None:
        """Return the error if a collective failed because ranks took different paths; else None."""
        entries = self._board.first_difference()
        return self._error(entries) if entries else None

    def close(self) -> None:
        self._board.ends()
        self._board.close()

    def _compare(self, what: str) -> int:
        board = self._board
        where = self._where()
        if threading.get_ident() != self._thread and _is_scripts(threading.current_thread()):
            where += ", in another thread"
        number = board.record(what, where)
        if board.differs(number):
            entries = board.differing(number)
            if entries:
                raise self._error(entries)
        return number

    def _where(self) -> str:
        return self._place or self._lines.nearest(sys._getframe(1))

    def _error(self, entries: Sequence[BoardEntry]) -> DivergedError:
        paths = [(entry.rank + self._first_rank, entry.where, entry.what) for entry in entries]
        return DivergedError(paths)


def _is_scripts(thread: threading.Thread) -> bool:
    """Return whether Python started the thread, unlike autograd's threads for a CUDA device."""
    return not isinstance(thread, threading._DummyThread)
