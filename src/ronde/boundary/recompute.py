"""What a checkpoint computes again in backward runs as in forward: on this rank's rows, with its draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint

from ronde.boundary.context import Context, Region
from ronde.boundary.patches import Patches
from ronde.boundary.standing import here

__all__ = ["install"]


def install(patches: Patches, context: Context) -> None:
    plain: Any = torch.utils.checkpoint.checkpoint

    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if context.region is not Region.SCRIPT:
            function = _resuming(context, function)
        return plain(function, *args, **kwargs)

    patches.set(torch.utils.checkpoint, "checkpoint", checkpoint)


def _resuming(context: Context, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which from its second call on runs where execution stands now."""
    again = here(context)
    first = True

    def resumed(*args: Any, **kwargs: Any) -> Any:
        nonlocal first
        if first:
            first = False
            return function(*args, **kwargs)
        with again():
            return function(*args, **kwargs)

    return resumed
