"""`ronde server`: one parameter server, started by hand on this host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ronde.cli.server_options import check_packages
from ronde.cluster.linux import check_linux
from ronde.errors import UsageError
from ronde.launch.server_config import ServerConfig, read_token

__all__ = ["server"]

_UPDATES = ("sync", "async", "bounded", "geo")


def server(
    listen: Annotated[
        str,
        typer.Option(
            metavar="ENDPOINT", help="Endpoint: tcp://ADDRESS:PORT of one interface, or ipc://NAME."
        ),
    ],
    workers: Annotated[int, typer.Option(min=1, help="Number of ranks of the run.")],
    index: Annotated[int, typer.Option(min=0, help="Index of this server, from 0.")] = 0,
    servers: Annotated[int, typer.Option(min=1, help="Number of servers of the run.")] = 1,
    update: Annotated[
        str, typer.Option(metavar="RULE", help="Update rule of the plan: sync, async, bounded or geo.")
    ] = "sync",
    staleness: Annotated[
        int, typer.Option(min=0, help="Steps by which a worker may be ahead under bounded.")
    ] = 0,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory of its state; without it a restart forgets all state."),
    ] = None,
) -> None:
    """Start one parameter server; Ctrl-C or SIGTERM ends it.

    The run's token is read from RONDE_SERVER_TOKEN, which must be equal for servers and `ronde run`.
    """
    check_linux()
    check_packages(servers)
    if index >= servers:
        raise UsageError(f"--index {index} is not one of {servers} servers, counted from 0 [R431]")
    if update not in _UPDATES:
        raise UsageError(f"--update {update} is unknown; choose among {', '.join(_UPDATES)} [R431]")
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
