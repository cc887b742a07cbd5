"""Where execution stands in forward, so that it may stand there again in backward.

What is computed there on behalf of a model is computed on the same rows, with the same draws.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ronde.rng.draws import SlicedDraws
from ronde.tensor.context import Context, Region

__all__ = ["here"]


def here(context: Context) -> Callable[[], AbstractContextManager[None]]:
    """Makes what to enter in order to stand again where execution stands now."""
    # By then nobody watches.
    region = Region.SHARDED if context.region is Region.OBSERVED else context.region
    standing = dataclasses.replace(context.standing, region=region)
    active = SlicedDraws.active()
    draws: Callable[[], AbstractContextManager[Any]] = active.resuming() if active else nullcontext

    @contextmanager
    def again() -> Iterator[None]:
        with context.enter(standing), draws(), standing.resuming():
            yield

    return again
