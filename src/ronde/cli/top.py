"""`ronde top`: a run, live, in the terminal."""

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
        typer.Argument(metavar="RUN_DIR", help="The directory of a run.", show_default="the newest run"),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one picture, and end.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two looks.")] = 1.0,
) -> None:
    """Show each rank of a run: step, phase, speed, memory, and who comes last.

    The run may be over. Where stdout is no terminal, one picture is printed. Ctrl-C ends it, and not the run.
    """
    if not 0 < every < math.inf:
        raise UsageError(f"--every {every:g} is not a number of seconds above 0; try --every 1")
    from rich.console import Console

    from ronde.report.live import watch
    from ronde.report.run import find_run

    watch(find_run(path, os.environ), every=every, once=once, console=Console(highlight=False))
