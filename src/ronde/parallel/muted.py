"""What this thread prints is dropped; other threads of the script go on printing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from ronde.boundary.thread_stream import ThreadStream

__all__ = ["muted"]


class _Muted:
    """A stream to which nothing is written."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def muted() -> Iterator[None]:
    """Inside, nothing that this thread writes to `sys.stdout` or `sys.stderr` arrives there."""
    out: Any = ThreadStream(_Muted(sys.stdout), sys.stdout)
    error: Any = ThreadStream(_Muted(sys.stderr), sys.stderr)
    with redirect_stdout(out), redirect_stderr(error):
        yield
