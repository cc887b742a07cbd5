"""The process of `ronde ui`: address, token, and main loop."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
from collections.abc import Callable
from pathlib import Path

import uvicorn

from ronde.cluster.listening import in_url, listen
from ronde.errors import LaunchError
from ronde.report.server.application import Readers, application
from ronde.report.server.runs import Runs

__all__ = ["serve"]

PORT = 8767
_WAITING_AT_MOST = 256


def serve(root: Path, *, host: str, port: int | None, token: str, say: Callable[[str], None]) -> None:
    """Show the runs at a path until a signal arrives.

    Args:
        host: an address of this machine; other machines reach all but loopback ones.
        port: TCP port; None: `PORT`, or any free one if that is taken.
        token: word that is asked of readers; "": a random one if other machines reach the address.
        say: function that tells the user the address.

    Raises:
        LaunchError: the address cannot be had.
    """
    try:
        listening = listen(host, PORT if port is None else port)
    except LaunchError:
        if port is not None:
            raise
        listening = listen(host, 0)
    listening.listen(_WAITING_AT_MOST)
    address, bound = listening.getsockname()[:2]
    is_loopback = ipaddress.ip_address(address).is_loopback
    if not token and not is_loopback:
        token = secrets.token_urlsafe(16)
    runs = Runs(root)
    if not runs.paths():
        say(f"there is no run in {root} yet; the page shows each one as it begins [R614]")
    query = f"?token={token}" if token else ""
    say(f"the page is at http://{in_url(address)}:{bound}/{query}; Ctrl-C ends it [R613]")
    hosts = ("localhost", "127.0.0.1", "[::1]", "::1", address) if is_loopback else ("*",)
    with contextlib.closing(Readers(runs)) as readers:
        made = application(readers, token=token, hosts=hosts)
        # A reader's stream never ends by itself.
        config = uvicorn.Config(
            made, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        uvicorn.Server(config).run(sockets=[listening])
