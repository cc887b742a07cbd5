"""`ronde ui`: runs as a live page in the browser."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ronde.cluster.linux import check_linux
from ronde.errors import UsageError
from ronde.launch.announce import say

__all__ = ["ui"]

TOKEN_KEY = "RONDE_UI_TOKEN"


def ui(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN_DIR|FOLDER",
            help="Directory of a run, or a folder of such; it may appear later.",
            show_default="the folder where ronde run puts runs",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 for other machines, too.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port; 0 chooses a free one.", show_default="8767, or a free one"
        ),
    ] = None,
) -> None:
    """Show runs live in the browser: loss, speed, time by phase, memory, causes.

    It also shows runs that are over, and several laid over each other. If other machines reach the address,
    the URL has a token, which RONDE_UI_TOKEN may set. Nothing is loaded from a network.
    """
    check_linux()
    try:
        from ronde.report.server.serve import serve
    except ImportError as error:
        raise UsageError(
            f"ronde ui needs a package that is missing ({error}): pip install 'ronde[ui]' [R616]"
        ) from None
    from ronde.report.run import root_of_runs

    root = root_of_runs(path, os.environ)
    serve(root, host=host, port=port, token=os.environ.get(TOKEN_KEY, ""), say=say)
