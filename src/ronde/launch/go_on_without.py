"""Whether a run goes on when a rank has died: where none waits for another, and rank 0 is left."""

from __future__ import annotations

import signal

from ronde.launch.failure import RankDeath
from ronde.launch.node_events import NodeEvents
from ronde.launch.run_spec import RunSpec
from ronde.plan import Plan
from ronde.trace.run_directory import RunDirectory

__all__ = ["goes_on_without"]


def goes_on_without(run: RunSpec, death: RankDeath, directory: RunDirectory, events: NodeEvents) -> bool:
    """Whether the others go on, which the user is told; not where checkpoints are made, which are of all."""
    if run.checkpoint or death.code >= 0 or death.rank == 0 or not Plan.parse(run.plan).is_local:
        return False
    name = signal.Signals(-death.code).name
    events.noticed(
        f"rank {death.rank} was killed by {name}; the others go on without it; log: "
        f"{directory.log(death.rank)}"
    )
    return True
