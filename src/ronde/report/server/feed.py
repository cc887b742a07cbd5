"""Contents that are renewed in a thread as long as somebody follows them.

All that follow a run share one feed, so that many readers cost what one costs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from time import monotonic
from typing import final

__all__ = ["Feed", "News"]

# Renewing takes at most this share of a core.
_SHARE = 0.05


@final
class News:
    """Event that wakes all readers when any feed has changed."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def tell(self) -> None:
        told, self._next = self._next, asyncio.Event()
        told.set()

    def next(self) -> asyncio.Event:
        """Return the event of the next change; ask before looking at feeds."""
        return self._next


@final
class Feed:
    """Contents with a version.

    Args:
        renew: function that returns new contents, None if nothing has changed; it runs in `executor`.
        every: seconds between two calls, or more where these are slow.

    Attributes:
        content: the latest contents.
        version: number of times that they have changed; 0 before the first.
    """

    def __init__(
        self, renew: Callable[[], bytes | None], executor: Executor, news: News, *, every: float = 1.0
    ) -> None:
        self._renew, self._executor, self._news, self._every = renew, executor, news, every
        self._followers = 0
        self._task: asyncio.Task[None] | None = None
        self.content = b""
        self.version = 0

    @contextlib.asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Renew the contents within the context."""
        self._followers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._go_on())
        try:
            yield
        finally:
            self._followers -= 1
            if not self._followers:
                self._task.cancel()
                self._task = None

    @property
    def is_followed(self) -> bool:
        return self._followers > 0

    async def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begun = monotonic()
            try:
                content = await loop.run_in_executor(self._executor, self._renew)
            except OSError:  # files vanish while they are read
                content = None
            if content is not None and (content != self.content or not self.version):
                self.content, self.version = content, self.version + 1
                self._news.tell()
            await asyncio.sleep(max(self._every, (monotonic() - begun) / _SHARE))
