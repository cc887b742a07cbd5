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
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN_DIR", help="Directory of the run, or of several.", show_default="the newest run"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Path of the page.", show_default="RUN_DIR/report.html"),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the records as a table.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write records, events and cause as JSON.")
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the curves for TensorBoard.")
    ] = None,
    mlflow: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Log the curves to MLflow at http://HOST:5000, say."),
    ] = None,
) -> None:
    """Write one HTML page: loss, throughput, time by phase, stragglers, bytes, memory, events.

    It is the page of ronde ui at this moment, and needs no network and nothing beside it. Several runs are
    laid over each other; they need --out. With an export and without --out no page is written.
    """
    from ronde.report.export.write import Exports
    from ronde.report.page import write
    from ronde.report.run import find_run, read_run

    found = [find_run(path, os.environ) for path in paths or [None]]
    exports = Exports(csv=csv, json=json, tensorboard=tensorboard, mlflow=mlflow)
    if exports:
        if len(found) > 1:
            raise UsageError(f"an export is of one run, and {len(found)} are named; name one [R619]")
        for target in exports.write(read_run(found[0])):
            say(f"the run is exported to {target} [R605]")
        if out is None:
            return
    if out is None and len(found) > 1:
        raise UsageError(f"a page of {len(found)} runs needs a name; add --out FILE [R604]")
    target = out if out is not None else found[0] / "report.html"
    try:
        write([read_run(each) for each in found], target)
    except OSError as error:
        raise UsageError(
            f"cannot write {target}: {error.strerror}; choose another by --out FILE [R604]"
        ) from None
    say(f"the report is in {target} [R605]")
