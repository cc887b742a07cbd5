"""Seeds that the script sets are noted, so that ranks with different ones are found at that line."""

from __future__ import annotations

import functools
import os
import random
import sys
from types import FrameType
from typing import Any

import numpy
import torch

from ronde.boundary.context import Context, Region
from ronde.boundary.patches import Patches

__all__ = ["install"]

_LOADER = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "utils", "data", "")


def install(patches: Patches, context: Context) -> None:
    for owner, name, told in (
        (torch, "manual_seed", "torch.manual_seed"),
        (torch.random, "manual_seed", "torch.manual_seed"),
        (random, "seed", "random.seed"),
        (numpy.random, "seed", "numpy.random.seed"),
    ):
        patches.set(owner, name, _noting(getattr(owner, name), told, context))


def _noting(plain: Any, told: str, context: Context) -> Any:
    @functools.wraps(plain)
    def seed(*args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(given, int) and _in_step(context):
            context.comm.mark(f"{told}({given})")
        return plain(*args, **kwargs)

    return seed


def _in_step(context: Context) -> bool:
    """Not so inside a model or a loader, where a rank may seed by the sample that only it has."""
    if context.region is not Region.SCRIPT or not context.on_main_thread():
        return False
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_LOADER):
            return False
        frame = frame.f_back
    return True
