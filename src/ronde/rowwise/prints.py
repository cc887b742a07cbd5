"""What a call prints is held back until it is known that it will not be carried out again."""

from __future__ import annotations

import sys
import threading
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["HeldBack"]


class HeldBack(AbstractContextManager["HeldBack"]):
    """Inside, what this thread prints is kept; other threads print as ever."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._said: list[str] = []

    def __enter__(self) -> HeldBack:
        self._plain = sys.stdout
        sys.stdout = self  # type: ignore[assignment]
        return self

    def __exit__(self, *raised: object) -> None:
        sys.stdout = self._plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            return self._plain.write(text)
        self._said.append(text)
        return len(text)

    def say(self) -> None:
        """Print it."""
        if self._said:
            sys.stdout.write("".join(self._said))
