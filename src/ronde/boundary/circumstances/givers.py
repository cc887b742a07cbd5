"""Who gives through a queue of threads: whether its values come in one order, which is that of every rank.

What one thread puts comes out as it was put, whenever that was. Not so where several give, where the queue is
no plain one, where somebody beside the main thread takes out of it, or where who gives has its values in no
order itself: from processes, from several threads, or from what was ready first.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ronde.boundary.other_threads import others

__all__ = ["Givers"]

# Whose threads do what comes next, or call the script when something is done.
_POOLS = ("multiprocessing.pool", "concurrent.futures")
_FIRST_IN_FIRST_OUT = ("_init", "_put", "_get")

_Threads = weakref.WeakKeyDictionary[Any, Callable[[], Any]]


class Givers:
    """Notes of the threads that give and take, made by themselves.

    Each note is one that is never taken back, so threads need no lock: what is noted before something is put
    is known to whoever takes it.
    """

    def __init__(self) -> None:
        # Of each queue the thread that does, or that several do.
        self._giving: _Threads = weakref.WeakKeyDictionary()
        self._taking: _Threads = weakref.WeakKeyDictionary()
        self._unordered: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    def gives(self, target: queue.Queue[Any]) -> None:
        """This thread is about to put something there."""
        here = threading.current_thread()
        _note(self._giving, target, here)
        if here in self._unordered or _of_a_pool(here):
            self._giving[target] = _several

    def takes(self, source: queue.Queue[Any]) -> None:
        """A thread beside the main one takes something from there."""
        _note(self._taking, source, threading.current_thread())

    def has_taken(self, source: queue.Queue[Any]) -> None:
        """After `takes`: by now it is known who had put that."""
        if not _in_order(source) or _several in (self._giving.get(source, _several), self._taking[source]):
            self.in_no_order()

    def in_no_order(self) -> None:
        """This thread goes by what is there first, or by what is there just now."""
        here = threading.current_thread()
        if here is not threading.main_thread():  # that is in step
            self._unordered.add(here)

    def mix(self, source: queue.Queue[Any]) -> bool:
        """Whether what the main thread has just taken may have come before something else on another rank."""
        giver, may = self._giving.get(source, _several), list(others())
        if giver is _several or source in self._taking or not _in_order(source):
            return True
        if giver() is threading.current_thread():  # all ranks together
            return False
        return len(may) + (giver() not in may) > 1


def _several() -> None:
    """In the place of one thread."""


def _note(threads: _Threads, of: Any, here: threading.Thread) -> None:
    if threads.setdefault(of, weakref.ref(here))() is not here:
        threads[of] = _several


def _in_order(source: queue.Queue[Any]) -> bool:
    kind: Any = type(source)
    return all(getattr(kind, name) is getattr(queue.Queue, name) for name in _FIRST_IN_FIRST_OUT)


def _of_a_pool(thread: threading.Thread) -> bool:
    called: Any = getattr(thread, "_target", None) or type(thread).run
    return str(getattr(called, "__module__", "")).startswith(_POOLS)
