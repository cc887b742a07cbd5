"""A stream in the place of another, for the thread that put it there; other threads go on as ever."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["ThreadStream"]


class ThreadStream:
    """Acts as `own` for the thread that makes it, and as `stream` for all others."""

    def __init__(self, own: Any, stream: Any) -> None:
        self._own = own
        self._stream = stream
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own if threading.get_ident() == self._thread else self._stream, name)
