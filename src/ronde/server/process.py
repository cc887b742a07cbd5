"""The process of one parameter server."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import torch

from ronde.errors import RondeError
from ronde.launch.server_config import ServerConfig
from ronde.server.dense import DenseShard
from ronde.server.parameter_server import ParameterServer, Rule
from ronde.server.shard import Shard
from ronde.server.sparse import SparseShard
from ronde.server.transport.service import Service

__all__ = ["main", "serve"]

_RULES: dict[str, Rule] = {"sync": "sync", "async": "async", "bounded": "bounded", "geo": "async"}


def serve(config: ServerConfig, *, by_hand: bool = False) -> None:
    """Listen and answer until SIGTERM comes, or a worker says that it is over.

    Args:
        by_hand: Ctrl-C is for this process; else it is for the ranks, and servers end after them.

    Raises:
        UsageError: it cannot listen at its endpoint.
    """
    shard = Shard({"dense": DenseShard(), "sparse": SparseShard()})
    about: dict[str, Any] = {
        "server": config.index,
        "servers": config.servers,
        "started": config.started,
        "update": config.update,
    }
    server = ParameterServer(
        shard,
        None,
        workers=config.workers,
        rule=_RULES[config.update],
        staleness=config.staleness,
        about=about,
        on_stop=lambda: service.stop(),
    )
    service = Service(config.endpoint, bytes.fromhex(config.token), server)
    about["refused"] = service.refused  # as it is whenever somebody asks
    signal.signal(signal.SIGTERM, lambda *_: service.stop())
    signal.signal(signal.SIGINT, (lambda *_: service.stop()) if by_hand else signal.SIG_IGN)
    _tell(
        f"server {config.index} of {config.servers} listens at {service.endpoint} for {config.workers} workers"
    )
    try:
        service.run()
    finally:
        service.close()
    refused = ", ".join(f"{count} {kind}" for kind, count in service.refused.items()) or "none"
    counts = server.counts
    _tell(
        f"server {config.index} ends: {counts.applied} changes, {counts.reads} answers, {counts.repeated} "
        f"repeated requests, refused messages: {refused}"
    )


def main() -> None:
    """Serve as the environment says."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        serve(ServerConfig.take_from(os.environ))
    except RondeError as error:
        _tell(f"ronde: {error}")
        raise SystemExit(1) from None


def _tell(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)  # noqa: T201 - its log


if __name__ == "__main__":
    main()
