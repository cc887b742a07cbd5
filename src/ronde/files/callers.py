"""Classifies callers of file operations: main thread, other threads, forked processes, ronde itself.

Ranks make the main thread's calls in step.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

from ronde.patching.caller import is_script, is_standard
from ronde.patching.torch_internals import CompileContext

__all__ = ["Callers"]


class _Depth(threading.local):
    """Thread-local depth of nested contexts, copied by a fork."""

    value = 0

    @contextmanager
    def deeper(self) -> Iterator[None]:
        self.value += 1
        try:
            yield
        finally:
            self.value -= 1


class Callers:
    """Classifies the present call.

    Args:
        alone: whether there is only one rank.
        apart: whether ranks are never in step; each then changes files as a thread of the script would.

    Attributes:
        branched: whether the script has started threads or processes, which may have changed files.
        trackers: folders of packages with files that are each rank's own.
    """

    def __init__(self, *, alone: bool, apart: bool = False) -> None:
        self.branched = False
        self.trackers: tuple[str, ...] = ()
        self._alone = alone
        self._apart = apart
        self._forks = False
        self._unmediated, self._for_itself = _Depth(), _Depth()
        self._process = os.getpid()
        self._thread = threading.main_thread().ident
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._collector: int | None = None

    def unmediated(self) -> AbstractContextManager[None]:
        """Mark this thread's file operations inside as ronde's own."""
        return self._unmediated.deeper()

    def for_itself(self) -> AbstractContextManager[None]:
        """Let each rank work for itself inside the `with` block.

        So it loads its own samples, for example.
        """
        return self._for_itself.deeper()

    def in_step(self) -> bool:
        """Return whether all ranks make this call together.

        It is the main thread's, and neither nested nor made by the garbage collector.
        """
        if self._unmediated.value or self._for_itself.value or os.getpid() != self._process:
            return False
        if self._apart:
            return False
        if threading.get_ident() != self._thread or self._collects():
            return False
        # torch's compiler holds a lock that ranks share while it writes: ranks in step would deadlock.
        if CompileContext.try_get() is not None:
            return False
        return not (self.trackers and self._above(lambda name: name.startswith(self.trackers)))

    def is_beside(self) -> bool:
        """Return whether the script's thread or fork, or garbage collection, makes this call.

        Calls of a process that a library forked, such as a loader's worker, do not count: it loads other
        samples on each rank, and all ranks need the files that it writes.
        """
        if self._alone or self._unmediated.value or self._for_itself.value:
            return False
        if os.getpid() != self._process:
            return self._forks
        beside = self._apart or self._collects()
        if not beside and threading.get_ident() != self._thread:
            beside = threading.current_thread() in self._threads or self._above(is_script)
        self.branched = self.branched or beside
        return beside

    def looks_aside(self) -> bool:
        """Return whether the answer may depend on changes by other threads and processes."""
        return not (self._alone or self._unmediated.value) and (self.branched or self.is_beside())

    def starts(self, thread: threading.Thread | None = None) -> None:
        """Record that a thread is about to start, or a process to be forked.

        It is the script's if the script starts it, directly or by a module of the interpreter (a pool, a
        timer).
        """
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and is_standard(frame.f_code.co_filename):
            frame = frame.f_back
        of_script = frame is not None and is_script(frame.f_code.co_filename)
        self.branched = self.branched or of_script
        if thread is None:
            self._forks = of_script
        elif of_script:
            self._threads.add(thread)

    def on_collection(self, phase: str, _: Mapping[str, int]) -> None:
        """Track Python's garbage collection, which comes at different moments on each rank."""
        self._collector = threading.get_ident() if phase == "start" else None

    def _collects(self) -> bool:
        return self._collector == threading.get_ident()

    @staticmethod
    def _above(is_meant: Callable[[str], bool]) -> bool:
        """Return whether code of a meant file is on the stack above the script."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            name = frame.f_code.co_filename
            if is_meant(name):
                return True
            if is_script(name):
                return False
            frame = frame.f_back
        return False
