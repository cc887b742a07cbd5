"""What a server process is told by whoever starts it; travels as JSON in one environment variable."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, MutableMapping

from ronde.errors import UsageError

__all__ = ["SERVERS_KEY", "SERVER_KEY", "TOKEN_KEY", "ServerConfig", "local_endpoint", "read_token"]

SERVER_KEY = "RONDE_SERVER_CONFIG"
TOKEN_KEY = "RONDE_SERVER_TOKEN"
#: Where servers listen, with commas between; `ronde run --native` sets it for the program.
SERVERS_KEY = "RONDE_SERVERS"


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


def read_token(environment: Mapping[str, str]) -> str:
    """The token of servers that were started by hand.

    Raises:
        UsageError: there is none, or it is no token.
    """
    token = environment.get(TOKEN_KEY, "")
    if not re.fullmatch(r"[0-9a-f]{32}", token):
        found = "is not set" if not token else "is not one"
        raise UsageError(
            f"servers know a run by its token, and {TOKEN_KEY} {found}: set it, for servers and ranks alike, to "
            "what `openssl rand -hex 16` prints"
        )
    return token
