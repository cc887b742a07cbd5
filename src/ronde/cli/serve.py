"""`ronde serve`: a read-only server of a model that is trained, or was."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ronde.cluster.linux import check_linux
from ronde.errors import UsageError
from ronde.launch.announce import say

__all__ = ["serve"]


def serve(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A run's directory, or what ronde export has written.")
    ],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 for other machines, too.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any that is free.")] = 8765,
    version: Annotated[
        int | None,
        typer.Option(min=1, help="Serve this one.", show_default="the newest"),
    ] = None,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="How often to look for a newer version.")
    ] = 0.1,
) -> None:
    """Serve a model over HTTP: look up rows, predict, follow the run that trains it.

    Nobody is asked who they are, so it is reached from this machine alone unless --host says otherwise.
    """
    check_linux()
    if not 0 < interval < float("inf"):
        raise UsageError(f"--interval {interval:g} is not a number of seconds above 0; try --interval 0.1")
    try:
        from ronde.server.serving.serve import serve as serve_
    except ImportError as error:
        raise UsageError(
            f"ronde serve needs a package that is missing ({error}): pip install 'ronde[serve]'"
        ) from None
    serve_(path, host=host, port=port, version=version, interval=interval, say=say)
