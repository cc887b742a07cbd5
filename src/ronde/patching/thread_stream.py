"""A standard stream is another one for the thread that says so; other threads go on as ever."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

__all__ = ["redirected"]


class _ThreadStream:
    """Acts as `own` for the thread that makes it, until it is told to end, and else as `stream`."""

    def __init__(self, own: Any, stream: Any) -> None:
        self._own = own
        self._stream = stream
        self._thread: int | None = threading.get_ident()

    def end(self) -> None:
        """Another thread may have come by it meanwhile, and keep it, or put it back as what was there."""
        self._own = self._thread = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own if threading.get_ident() == self._thread else self._stream, name)


@contextmanager
def redirected(name: Literal["stdout", "stderr"], own: Any) -> Iterator[None]:
    """Inside, what this thread writes to `sys.stdout` or `sys.stderr` goes to `own`."""
    before = getattr(sys, name)
    stream = _ThreadStream(own, before)
    setattr(sys, name, stream)
    try:
        yield
    finally:
        stream.end()
        if getattr(sys, name) is stream:  # or another thread has redirected it, and will put this one back
            setattr(sys, name, before)
