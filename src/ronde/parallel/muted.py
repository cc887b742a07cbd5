"""What this thread prints is dropped; other threads of the script go on printing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ronde.patching.thread_stream import redirected

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
    with redirected("stdout", _Muted(sys.stdout)), redirected("stderr", _Muted(sys.stderr)):
        yield
