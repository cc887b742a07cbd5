"""What a launcher notes about a run when its ranks have been started, for whoever looks from outside."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from ronde.launch.job import Job

__all__ = ["Launched", "read_launched", "write_launched"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """`launch.json` of a run directory.

    Attributes:
        launcher: its process; pids: those of ranks, in their order.
    """

    run_id: str
    launcher: int
    pids: tuple[int, ...]
    script: str
    plan: str


def write_launched(job: Job, pids: dict[int, int]) -> None:
    """Note it; a run directory that takes no more files is no matter here."""
    launched = Launched(
        run_id=job.run_directory.run_id,
        launcher=os.getpid(),
        pids=tuple(pids[rank] for rank in sorted(pids)),
        script=job.script,
        plan=job.plan,
    )
    try:
        job.run_directory.launch.write_text(json.dumps(dataclasses.asdict(launched)) + "\n")
    except OSError:
        return


def read_launched(path: Path) -> Launched | None:
    """What was noted there, None where nothing was."""
    try:
        fields = json.loads(path.read_text())
        return Launched(**{**fields, "pids": tuple(fields["pids"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
