"""What this thread prints is dropped; other threads of the script go on printing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

__all__ = ["muted"]


class _Muted:
    """A stream for all threads but one."""

    def __init__(self, stream: Any, thread: int) -> None:
        self._stream = stream
        self._thread = thread

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def muted() -> Iterator[None]:
    """Inside, nothing that this thread writes to `sys.stdout` or `sys.stderr` arrives there."""
    thread = threading.get_ident()
    out: Any = _Muted(sys.stdout, thread)
    error: Any = _Muted(sys.stderr, thread)
    with redirect_stdout(out), redirect_stderr(error):
        yield
