"""`ronde server`: one parameter server, started by hand on this host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ronde.cluster.linux import check_linux
from ronde.errors import UsageError
from ronde.launch.server_config import ServerConfig, read_token

__all__ = ["server"]

_UPDATES = ("sync", "async", "bounded", "geo")


def server(
    listen: Annotated[
        str,
        typer.Option(metavar="ENDPOINT", help="Where: tcp://ADDRESS:PORT of one interface, or ipc://NAME."),
    ],
    workers: Annotated[int, typer.Option(min=1, help="How many ranks the run has.")],
    index: Annotated[int, typer.Option(min=0, help="Which of the servers this is, from 0.")] = 0,
    servers: Annotated[int, typer.Option(min=1, help="How many servers the run has.")] = 1,
    update: Annotated[
        str, typer.Option(metavar="RULE", help="sync, async, bounded or geo, as the plan says.")
    ] = "sync",
    staleness: Annotated[int, typer.Option(min=0, help="Steps a worker may be ahead, of bounded.")] = 0,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where its state is kept; left out, a restart forgets.")
    ] = None,
) -> None:
    """Start one parameter server; Ctrl-C or SIGTERM ends it.

    The run's token is read from RONDE_SERVER_TOKEN, which servers and `ronde run` must have alike.
    """
    check_linux()
    if index >= servers:
        raise UsageError(f"--index {index} is none of {servers} servers, which are counted from 0")
    if update not in _UPDATES:
        raise UsageError(f"--update {update}: there are {', '.join(_UPDATES)}")
    config = ServerConfig(
        index=index,
        servers=servers,
        endpoint=listen,
        token=read_token(os.environ),
        workers=workers,
        update=update,
        staleness=staleness,
        directory="" if state is None else str(state),
    )
    from ronde.server.process import serve

    serve(config, by_hand=True)
