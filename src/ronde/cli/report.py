"""`ronde report`: a run as an HTML page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ronde.errors import UsageError
from ronde.launch.announce import say

__all__ = ["report"]


def report(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="RUN_DIR", help="Directory of the run.", show_default="the newest run"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Path of the page.", show_default="RUN_DIR/report.html"),
    ] = None,
) -> None:
    """Write one HTML page: loss, throughput, time by phase, stragglers, bytes, memory, events.

    It needs no network and nothing beside it. The run may go on meanwhile.
    """
    from ronde.report.page import write
    from ronde.report.run import find_run, read_run

    directory = find_run(path, os.environ)
    target = out if out is not None else directory / "report.html"
    try:
        write(read_run(directory), target)
    except OSError as error:
        raise UsageError(
            f"cannot write {target}: {error.strerror}; choose another by --out FILE [R604]"
        ) from None
    say(f"the report is in {target} [R605]")
