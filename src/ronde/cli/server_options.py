"""Options of `ronde run` for parameter servers and publishing."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from pathlib import Path

from ronde.errors import UsageError
from ronde.plan import Plan
from ronde.trace.run_directory import RunDirectory

__all__ = [
    "check_packages",
    "check_starts_servers",
    "durability_of",
    "endpoints_of",
    "publish_interval",
    "server_state_of",
    "token_of",
]


def endpoints_of(servers: str | None) -> tuple[str, ...]:
    """Return endpoints of servers started by hand; () for a number."""
    if servers is None or servers.isdecimal():
        return ()
    found = tuple(each.strip() for each in servers.split(","))
    for each in found:
        place = re.fullmatch(r"ipc://.+|tcp://.+:(\d+)", each)
        if place is None or not 0 < int(place[1] or 1) < 1 << 16:
            raise UsageError(
                f"--servers {servers} is neither a number nor a list of endpoints such as "
                "tcp://10.0.0.5:4000; try --servers 2 [R416]"
            )
    if len(set(found)) < len(found):
        raise UsageError(
            f"--servers {servers} names one server twice; give each server its own endpoint [R433]"
        )
    return found


def check_starts_servers(option: str, endpoints: tuple[str, ...], plan: Plan) -> None:
    """Raise `UsageError` for an option about servers that this command does not start."""
    if endpoints:
        raise UsageError(
            f"{option} is for servers that ronde run starts, and these were started by hand: leave it out, "
            "and give each `ronde server` a --state DIR [R413]"
        )
    if not plan.state.server_count:
        raise UsageError(
            f"{option} is for parameter servers, and plan {plan} has none: leave it out, or give "
            "--servers N with --plan ps or hybrid [R413]"
        )


def durability_of(text: str | None) -> tuple[str, str]:
    if text is None:
        return "log", "never"
    from ronde.launch.server_config import read_durability

    return read_durability(text)


def token_of(endpoints: tuple[str, ...]) -> str:
    if not endpoints:
        return ""
    from ronde.launch.server_config import read_token

    return read_token(os.environ)


def server_state_of(path: Path | None, directory: RunDirectory) -> str:
    if path is None:
        return ""
    if path.absolute() == directory.path:
        raise UsageError(
            f"--server-state {path} is the run directory, and its servers would find no earlier state; give "
            "the new run another by --run-dir DIR [R414]"
        )
    return str(path.absolute())


def check_packages(servers: int) -> None:
    """Refuse servers and their clients without their packages, before anything starts.

    Args:
        servers: number of servers.

    Raises:
        UsageError: one is not installed.
    """
    missing = [name for name in ("cryptography", "xxhash", "zmq") if importlib.util.find_spec(name) is None]
    if servers and missing:
        raise UsageError(
            f"parameter servers need {', '.join(missing)}, not installed: pip install 'ronde[server]' [R419]"
        )


def publish_interval(seconds: float, *, native: bool) -> float:
    if not 0 <= seconds < math.inf:
        raise UsageError(f"--publish {seconds:g} is not a number of seconds; try --publish 1 [R730]")
    if seconds and native:
        raise UsageError("--publish needs a script that ronde distributes; leave out --native [R730]")
    if seconds and importlib.util.find_spec("safetensors") is None:
        raise UsageError("--publish needs safetensors: pip install 'ronde[serve]' [R730]")
    return seconds
