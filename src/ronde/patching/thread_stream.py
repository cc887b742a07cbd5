"""Redirects a standard stream for one thread; other threads keep theirs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

__all__ = ["redirected"]


class _ThreadStream:
    """A stream that is `own` for the making thread until `end`, else `stream`."""

    def __init__(self, own: Any, stream: Any) -> None:
        self._own = own
        self._stream = stream
        self._thread: int | None = threading.get_ident()

    def end(self) -> None:
        """Stop the redirection.

        Another thread may still hold this stream, or restore it later as the former one.
        """
        self._own = self._thread = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own if threading.get_ident() == self._thread else self._stream, name)


@contextmanager
def redirected(name: Literal["stdout", "stderr"], own: Any) -> Iterator[None]:
    """Redirect this thread's `sys.stdout` or `sys.stderr` to `own`."""
    before = getattr(sys, name)
    stream = _ThreadStream(own, before)
    setattr(sys, name, stream)
    try:
        yield
    finally:
        stream.end()
        if getattr(sys, name) is stream:  # or another thread has redirected it, and will restore this one
            setattr(sys, name, before)
