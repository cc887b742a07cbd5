"""`ronde serve`: read-only server of a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ronde.cluster.linux import check_linux
from ronde.errors import UsageError
from ronde.launch.announce import say
from ronde.launch.server_config import read_token

__all__ = ["serve"]

_LAST_PORT = 65535


def serve(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Directory of a run, or of ronde export.")],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 for other machines, too.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = 8765,
    version: Annotated[
        int | None,
        typer.Option(min=1, help="Version to serve.", show_default="the newest"),
    ] = None,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="Interval of looking for a newer version.")
    ] = 0.1,
    binary: Annotated[
        str | None,
        typer.Option(
            metavar="PORT|ENDPOINT",
            help="Serve the binary protocol, too: a port of this machine alone, 0 for any that is free, "
            "tcp://ADDRESS:PORT of one interface, or ipc://NAME.",
        ),
    ] = None,
) -> None:
    """Serve a model over HTTP: look-ups, predictions, new versions of a run.

    HTTP has no authentication, so the server listens on this machine only unless --host names an address.
    The binary protocol of ronde.ReplicaClient reads its token from RONDE_SERVER_TOKEN.
    """
    check_linux()
    endpoint = None if binary is None else _endpoint(binary)
    token = "" if endpoint is None else read_token(os.environ)
    if not 0 < interval < float("inf"):
        raise UsageError(
            f"--interval {interval:g} is not a number of seconds above 0; try --interval 0.1 [R737]"
        )
    try:
        from ronde.server.serving.serve import serve as serve_
    except ImportError as error:
        raise UsageError(
            f"ronde serve needs a package that is missing ({error}): pip install 'ronde[serve]' [R735]"
        ) from None
    serve_(
        path,
        host=host,
        port=port,
        version=version,
        interval=interval,
        binary=None if endpoint is None else (endpoint, bytes.fromhex(token)),
        say=say,
    )


def _endpoint(text: str) -> str:
    """Return the endpoint of ZeroMQ."""
    if not text.isdecimal():
        return text
    if int(text) > _LAST_PORT:
        raise UsageError(f"--binary {text} is not a port (at most {_LAST_PORT}); try --binary 8766 [R737]")
    return f"tcp://127.0.0.1:{text if int(text) else '*'}"
