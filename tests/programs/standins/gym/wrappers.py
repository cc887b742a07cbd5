"""Names that programs import and, without videos, do not use."""

from __future__ import annotations

from . import Wrapper

__all__ = ["Monitor", "TimeLimit"]


class TimeLimit(Wrapper):
    pass


class Monitor(Wrapper):
    pass
