"""A run directory as ranks would have left it, made without any."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

from ronde.trace.events import write_event
from ronde.trace.step_file import StepFile, StepRecord, steps_path

__all__ = ["WALL", "made_run"]

WALL = 1_764_060_000_000_000_000
MS = 1_000_000


def made_run(
    folder: Path,
    *,
    ranks: int = 2,
    steps: int = 300,
    slow: int | None = None,
    script: str = "train.py",
    ended: bool = True,
    nan_from: int | None = None,
) -> Path:
    """Ranks that take steps of 10 ms.

    Args:
        slow: a rank for which the others wait.
        ended: ranks have come to their ends; else they are gone.
        nan_from: from this step on the loss is not a number.
    """
    folder.mkdir(parents=True, exist_ok=True)
    host = platform.node()
    for rank in range(ranks):
        file = StepFile(
            steps_path(folder, rank),
            rank=rank,
            world_size=ranks,
            process=os.getpid() if ended else 2**22 + rank,
            clocks=(WALL, 1),
            host=host,
        )
        for step in range(1, steps + 1):
            waits = slow is not None and rank != slow
            loss = (
                math.nan if nan_from is not None and step >= nan_from else 2.3 * math.exp(-step / 80) + 0.02
            )
            record = StepRecord(
                step=step, steps=1, begun=(step - 1) * 10 * MS + 1, ended=step * 10 * MS + 1,
                data=MS, forward=3 * MS, backward=3 * MS if waits else 5 * MS, optimizer=MS // 2,
                waited=2 * MS if waits else 0, samples=32, resident=(300 + rank) << 20, device=0,
                sent=(1 << 20, 0, 0, 0), collectives=4, last=0 if waits else 3, late=0 if waits else MS,
                loss=loss, losses=1,
            )  # fmt: skip
            file.write(record.values())
            file.show_since(record.ended, step, 32 * step)
        if ended:
            file.close()
    write_event(folder, "start", script, rank=0, script=script, plan="ddp", seed=5, ranks=ranks, device="cpu")
    return folder
