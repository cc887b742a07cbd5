"""A collective that this rank has begun."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Started"]


class Started:
    """Completed when this rank needs the result, or goes on to another collective."""

    def __init__(self, complete: Callable[[], None]) -> None:
        self._complete: Callable[[], None] | None = complete

    def wait(self) -> None:
        """Wait for the others; a second call does nothing."""
        complete, self._complete = self._complete, None
        if complete is not None:
            complete()
