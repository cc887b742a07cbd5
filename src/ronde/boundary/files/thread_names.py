"""Names of threads, alike on all ranks: whose thread it is, and the how manyth that one has started.

Only threads that the script starts by itself have one. A pool starts as many as it happens to need.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import Counter

__all__ = ["ThreadNames"]

_MAIN = "main"


class ThreadNames:
    """Those of one rank."""

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[threading.Thread, str] = weakref.WeakKeyDictionary()
        self._started: Counter[str] = Counter()
        self._lock = threading.Lock()

    def give(self, thread: threading.Thread) -> str | None:
        """The name of a thread that this one is about to start; None if this one has none itself."""
        above = self.current()
        if above is None:
            return None
        with self._lock:
            self._started[above] += 1
            mark = f"{above} {self._started[above]}"
            self._names[thread] = hashlib.sha256(mark.encode()).hexdigest()[:16]
            return self._names[thread]

    def current(self) -> str | None:
        """That of the thread that asks."""
        thread = threading.current_thread()
        return _MAIN if thread is threading.main_thread() else self._names.get(thread)
