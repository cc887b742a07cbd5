"""`ronde top`: live view of a run in the terminal."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated

import typer

from ronde.errors import UsageError

__all__ = ["top"]


def top(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="RUN_DIR", help="Directory of the run.", show_default="the newest run"),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one picture, and exit.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="Interval of updates.")] = 1.0,
) -> None:
    """Show each rank of a run: step, phase, speed, memory, stragglers.

    The run may be over. If stdout is not a terminal, one picture is printed. Ctrl-C ends the view only.
    """
    if not 0 < every < math.inf:
        raise UsageError(f"--every {every:g} is not a number of seconds above 0; try --every 1 [R603]")
    from rich.console import Console

    from ronde.report.live import watch
    from ronde.report.run import find_run

    watch(find_run(path, os.environ), every=every, once=once, console=Console(highlight=False))
