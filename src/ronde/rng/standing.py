"""Captures the execution state of forward, to restore it in backward.

Recomputation for a model then uses the same rows, with the same draws.
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
    """Return a function that makes a context with the current execution state."""
    # In backward no call is observed.
    region = Region.SHARDED if context.region is Region.OBSERVED else context.region
    standing = dataclasses.replace(context.standing, region=region)
    active = SlicedDraws.active()
    draws: Callable[[], AbstractContextManager[Any]] = active.resuming() if active else nullcontext

    @contextmanager
    def again() -> Iterator[None]:
        with context.enter(standing), draws(), standing.resuming():
            yield

    return again
