"""What a server process is told by whoever starts it; travels as JSON in one environment variable."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import MutableMapping

__all__ = ["SERVER_KEY", "ServerConfig", "local_endpoint"]

SERVER_KEY = "RONDE_SERVER_CONFIG"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """One server's part of a run.

    Attributes:
        index, servers: which of how many.
        endpoint: where it listens, as ZeroMQ writes it: `tcp://127.0.0.1:4000`, `ipc://@name`.
        token: 32 hexadecimal digits that every message of the run holds.
        workers: how many ranks there are.
        update: the plan's key: `sync`, `async`, `bounded`, or `geo`.
        staleness: steps by which the slowest worker may be behind, of `bounded`.
        directory: its log and snapshots; "": it keeps none, and a restart begins with nothing.
        started: how often it was started before.
        parent: process with which it ends; 0: none.
    """

    index: int
    servers: int
    endpoint: str
    token: str
    workers: int
    update: str = "sync"
    staleness: int = 0
    directory: str = ""
    started: int = 0
    parent: int = 0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def take_from(cls, environment: MutableMapping[str, str]) -> ServerConfig:
        """Read the configuration and remove it."""
        return cls(**json.loads(environment.pop(SERVER_KEY)))


def local_endpoint(run_id: str, index: int) -> str:
    """Where a server of this host listens: a name without a file, so nothing can be left behind."""
    return f"ipc://@ronde-{run_id}-server-{index}"
