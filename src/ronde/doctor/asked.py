"""The planned run for which a host is examined."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

__all__ = ["PreflightRequest"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PreflightRequest:
    """Request to examine a host before a run.

    Attributes:
        ranks: number on this host; hosts: number of all.
        threads: number that each rank was told to use; None: an equal share of the cores.
    """

    ranks: int
    hosts: int = 1
    threads: int | None
    environment: Mapping[str, str]
