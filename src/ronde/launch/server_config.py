"""The configuration of a server process, as JSON in an environment variable."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, MutableMapping, Sequence

from ronde.errors import UsageError
from ronde.launch.run_spec import RunSpec
from ronde.plan import Plan

__all__ = [
    "SERVERS_KEY",
    "SERVER_KEY",
    "TOKEN_KEY",
    "ServerConfig",
    "local_endpoint",
    "read_durability",
    "read_token",
    "rule_of_servers",
    "with_servers",
]

SERVER_KEY = "RONDE_SERVER_CONFIG"
TOKEN_KEY = "RONDE_SERVER_TOKEN"
# : Endpoints of servers, separated by commas; `ronde run --native` sets it for the program.
SERVERS_KEY = "RONDE_SERVERS"

DURABILITIES = ("log", "snapshot", "none")
SYNCS = ("always", "group", "never")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """One server's part of a run.

    Attributes:
        index, servers: number of this server, and of all.
        endpoint: address that it listens at, as ZeroMQ writes it: `tcp://127.0.0.1:4000`, `ipc://@name`.
        token: 32 hexadecimal digits that clients and servers prove to each other.
        workers: number of ranks.
        update: the plan's key: `sync`, `async`, `bounded`, or `geo`.
        staleness: steps by which the slowest worker may be behind, of `bounded`.
        directory: folder of its log and snapshots; "": none are kept, and a restart begins without state.
        durability: the data that survives the process: every change (`log`), snapshots (`snapshot`), nothing
            (`none`).
        sync: time of writing its log to disk: `always`, before a change is confirmed; `group`, once a second;
            `never`, when the system does so.
        snapshot_bytes: a snapshot is made after changes of this many bytes, or of the state's size if larger.
        keep: number of snapshots that are kept, with their logs.
        source: directory of an earlier run, with any number of servers, whose tables are loaded.
        refusal: file for the reason why it refuses to start; "": none.
        started: number of earlier starts.
        parent: process whose end also ends the server; 0: none.
    """

    index: int
    servers: int
    endpoint: str
    token: str
    workers: int
    update: str = "sync"
    staleness: int = 0
    directory: str = ""
    durability: str = "log"
    sync: str = "never"
    snapshot_bytes: int = 64 << 20
    keep: int = 2
    source: str = ""
    refusal: str = ""
    started: int = 0
    parent: int = 0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def take_from(cls, environment: MutableMapping[str, str]) -> ServerConfig:
        """Read the configuration and remove it."""
        return cls(**json.loads(environment.pop(SERVER_KEY)))


def rule_of_servers(plan: Plan) -> str:
    """Return the rule by which servers apply changes."""
    return plan.update.rule if plan.state.placement == "server" else "sync"


def with_servers(
    run: RunSpec, endpoints: Sequence[str], ranks: int
) -> tuple[RunSpec, Sequence[ServerConfig]]:
    """Return the run with its servers, and the configuration of each.

    Args:
        endpoints: endpoint of each server.
    """
    plan, token = Plan.parse(run.plan), os.urandom(16).hex()
    configs = [
        ServerConfig(
            index=index,
            servers=len(endpoints),
            endpoint=endpoint,
            token=token,
            workers=ranks,
            update=rule_of_servers(plan),
            staleness=plan.update.staleness or 0,
            durability=run.durability,
            sync=run.durability_sync,
            source=run.server_state,
        )
        for index, endpoint in enumerate(endpoints)
    ]
    return dataclasses.replace(run, servers=tuple(endpoints), server_token=token), configs


def read_durability(text: str) -> tuple[str, str]:
    """Parse `log`, `log,sync=group`, `snapshot` or `none` into durability and sync.

    Raises:
        UsageError: the value is unknown.
    """
    durability, _, option = text.partition(",")
    name, _, sync = option.partition("=")
    known = not option or (durability == "log" and name == "sync" and sync in SYNCS)
    if durability not in DURABILITIES or not known:
        raise UsageError(
            f"--durability {text}: give log, snapshot or none; log may have ,sync=always, ,sync=group or "
            ",sync=never [R412]"
        )
    return durability, sync or "never"


def local_endpoint(run_id: str, index: int) -> str:
    """Return the endpoint of a server of this host, a name without a file."""
    return f"ipc://@ronde-{run_id}-server-{index}"


def read_token(environment: Mapping[str, str]) -> str:
    """Read the token of servers that were started by hand.

    Raises:
        UsageError: the variable is not set, or not a token.
    """
    token = environment.get(TOKEN_KEY, "")
    if not re.fullmatch(r"[0-9a-f]{32}", token):
        found = "is not set" if not token else "is not one"
        raise UsageError(
            f"servers know a run by its token, and {TOKEN_KEY} {found}: set it, for servers and ranks "
            "alike, to what `openssl rand -hex 16` prints [R417]"
        )
    return token
