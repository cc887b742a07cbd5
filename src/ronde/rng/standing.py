"""Where execution stands in forward, so that it may stand there again in backward.

What is computed there on behalf of a model is computed on the same rows, with the same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ronde.rng.draws import SlicedDraws
from ronde.tensor.context import Context, Region

__all__ = ["here"]


def here(context: Context) -> Callable[[], AbstractContextManager[None]]:
    """Makes what to enter in order to stand again where execution stands now."""
    region, rows, batchless = context.region, context.rows, context.batchless
    if region is Region.OBSERVED:  # by then nobody watches
        region = Region.SHARDED
    active = SlicedDraws.active()
    draws: Callable[[], AbstractContextManager[Any]] = active.resuming() if active else nullcontext

    @contextmanager
    def again() -> Iterator[None]:
        with context.enter(region, rows, batchless=batchless), draws():
            yield

    return again
