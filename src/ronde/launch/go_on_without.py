"""Whether a run goes on when a rank has died: where none waits for another, and rank 0 is left."""

from __future__ import annotations

import signal
from collections.abc import Callable

from ronde.launch.failure_report import RankDeath
from ronde.plan import Plan
from ronde.trace.run_directory import RunDirectory

__all__ = ["goes_on_without"]


def goes_on_without(
    plan: str, death: RankDeath, directory: RunDirectory, say_so: Callable[[str], object], *, saves: bool
) -> bool:
    """Whether the others go on, which the user is told.

    Args:
        saves: checkpoints are made, which are of all ranks.
    """
    if saves or death.code >= 0 or death.rank == 0 or not Plan.parse(plan).is_local:
        return False
    name = signal.Signals(-death.code).name
    say_so(
        f"rank {death.rank} was killed by {name}; the others go on without it; log: "
        f"{directory.log(death.rank)}"
    )
    return True
