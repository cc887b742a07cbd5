"""Functions that ranks run between `init` and `shutdown`, as a script for Horovod would."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ronde.compat.horovod import basics
from ronde.compat.place import PLACE_KEY, JobPlace
from ronde.testing.run_ranks import Rank


def started(rank: Rank, work: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What `work` gives on this rank."""
    place = JobPlace(
        rank=rank.rank,
        size=rank.world_size,
        local_rank=rank.rank,
        local_size=rank.world_size,
        store=f"file://{rank.directory}/compat",
    )
    os.environ[PLACE_KEY] = place.to_json()
    basics.init(**options)
    try:
        return work(*args)
    finally:
        basics.shutdown()
