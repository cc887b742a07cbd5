"""The process of one parameter server."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from ronde.errors import RondeError
from ronde.launch.server_config import ServerConfig
from ronde.launch.servers import CANNOT_SERVE
from ronde.server.dense import DenseShard
from ronde.server.import_tables import take_tables
from ronde.server.journal import Sync, open_directory
from ronde.server.parameter_server import ParameterServer, Rule
from ronde.server.shard import ServerShard
from ronde.server.snapshot import snapshots
from ronde.server.sparse import SparseShard
from ronde.server.storage import Storage, forget
from ronde.server.table.cold_folder import remove_stale
from ronde.server.transport.service import Service

__all__ = ["main", "serve"]

_SYNCS: dict[str, Sync] = {"always": "always", "group": "group", "never": "never"}
_RULES: dict[str, Rule] = {"sync": "sync", "async": "async", "bounded": "bounded", "geo": "async"}


def serve(config: ServerConfig, *, by_hand: bool = False) -> None:
    """Serve until SIGTERM or a STOP request.

    Args:
        by_hand: whether a user started this process: it continues from the state in its directory and ends on
            Ctrl-C. Else it ignores Ctrl-C, which is for the ranks, and `config.started` decides whether it
            continues.

    Raises:
        UsageError: the endpoint is not available.
        RondeError: the state on disk is damaged.
    """
    shard = ServerShard({"dense": DenseShard(), "sparse": SparseShard(directory=_directory(config))})
    storage = _storage(config, shard, goes_on=by_hand or config.started > 0)
    about: dict[str, Any] = {
        "server": config.index,
        "servers": config.servers,
        "started": config.started,
        "update": config.update,
        "staleness": config.staleness,
    }
    server = ParameterServer(
        shard,
        storage,
        workers=config.workers,
        rule=_RULES[config.update],
        staleness=config.staleness,
        about=about,
        on_stop=lambda: service.stop(),  # noqa: PLW0108 - `service` is assigned below
    )
    service = Service(config.endpoint, bytes.fromhex(config.token), server, tell=_tell)
    about["refused"] = service.refused  # the live counter, so that STATUS shows its current values
    signal.signal(signal.SIGTERM, lambda *_: service.stop())
    signal.signal(signal.SIGINT, (lambda *_: service.stop()) if by_hand else signal.SIG_IGN)
    _tell(
        f"server {config.index} of {config.servers} listens at {service.endpoint} for {config.workers} "
        "workers"
    )
    try:
        service.run()
    finally:
        service.close()
        if storage is not None:
            storage.close()
    refused = ", ".join(f"{count} {kind}" for kind, count in service.refused.items()) or "none"
    counts = server.counts
    _tell(
        f"server {config.index} ends: {counts.applied} changes, {counts.reads} answers, {counts.repeated} "
        f"repeated requests, refused messages: {refused}"
    )


def _directory(config: ServerConfig) -> str | None:
    """Return the folder for tables' rows on disk, cleared of an earlier process's files."""
    if not config.directory:
        return None
    open_directory(Path(config.directory))
    remove_stale(config.directory)
    return config.directory


def _storage(config: ServerConfig, shard: ServerShard, *, goes_on: bool) -> Storage | None:
    """Open the storage and load the shard's state from it, unless starting fresh."""
    if config.durability == "none" or not config.directory:
        return None
    directory = Path(config.directory)
    if not goes_on:
        forget(directory)  # a new run numbers its changes from 1
    if config.source and not snapshots(open_directory(directory)):
        take_tables(Path(config.source), directory, index=config.index, servers=config.servers, tell=_tell)
    return Storage(
        directory,
        shard,
        durability="snapshot" if config.durability == "snapshot" else "log",
        sync=_SYNCS[config.sync],
        least=config.snapshot_bytes,
        keep=config.keep,
        tell=_tell,
    )


def main() -> None:
    """Serve with the configuration in the environment."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    config = ServerConfig.take_from(os.environ)
    try:
        serve(config)
    except RondeError as error:
        _tell(f"ronde: {error}")
        if config.refusal:
            with contextlib.suppress(OSError):
                Path(config.refusal).write_text(str(error), encoding="utf-8")
        raise SystemExit(CANNOT_SERVE) from None


def _tell(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)  # noqa: T201 - its log


if __name__ == "__main__":
    main()
