"""The process of a replica: source, address, and main loop."""

from __future__ import annotations

import gc
import ipaddress
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING

import uvicorn

from ronde.cluster.listening import in_url, listen
from ronde.errors import UsageError
from ronde.server.serving.exported import MANIFEST, Exported
from ronde.server.serving.http import application
from ronde.server.serving.manifest import FOLDER
from ronde.server.serving.metrics import Metrics
from ronde.server.serving.published import Published
from ronde.server.serving.replica import Replica
from ronde.server.serving.snapshot import VersionSource

if TYPE_CHECKING:
    from ronde.server.serving.binary import BinaryReplica

__all__ = ["serve", "source_of"]

_LOOK_EVERY = 0.2
_WAITING_AT_MOST = 2048


def source_of(path: Path) -> VersionSource:
    """Return the source of versions in a run's directory or an exported model.

    Raises:
        UsageError: the path is neither of them.
    """
    if (path / MANIFEST).is_file():
        return Exported(path)
    if (path / FOLDER).is_dir() or (path / "store").exists():
        return Published(path / FOLDER)
    raise UsageError(
        f"{path} is neither the directory of a run with --publish nor a model of ronde export [R736]"
    )


def serve(
    path: Path,
    *,
    host: str,
    port: int,
    version: int | None,
    interval: float,
    binary: tuple[str, bytes] | None = None,
    say: Callable[[str], None],
) -> None:
    """Serve until a signal arrives.

    Args:
        path: directory of a run or of an exported model; waits for a run's first version.
        host: an address of this machine.
        port: TCP port; 0: any free one.
        version: version to serve, pinned; None: the newest, including later ones.
        interval: seconds between checks for a newer version.
        binary: endpoint and token of the binary protocol; None: it is not served.
        say: function that reports the address and errors to the user.

    Raises:
        UsageError: the path is neither a run nor an exported model.
    """
    listening = listen(host, port)
    answering = None if binary is None else _binary(*binary, say)
    source = source_of(path)
    if not source.versions():
        say(f"waiting for the first version in {path}; a run makes them with --publish [R738]")
    while not source.versions():
        sleep(_LOOK_EVERY)
    replica = Replica(source, version, say)
    replica.start(interval)
    listening.listen(_WAITING_AT_MOST)
    host, port = listening.getsockname()[:2]
    say(f"serves version {replica.snapshot.version} at http://{in_url(host)}:{port} [R738]")
    if not ipaddress.ip_address(host).is_loopback:
        say(
            "there is no authentication: every program that reaches this address may look up, predict and "
            "roll back [R739]"
        )
    # Objects made so far live on: exclude them from garbage collection.
    gc.collect()
    gc.freeze()
    metrics = Metrics(replica, None if answering is None else answering.refused)
    made = application(replica, metrics)
    config = uvicorn.Config(made, log_level="warning", access_log=False, lifespan="off")
    if answering is not None:
        answering.start(replica, metrics)
        say(f"answers the binary protocol at {answering.endpoint}, to programs with the token [R738]")
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        if answering is not None:
            answering.close()
        replica.close()


def _binary(endpoint: str, token: bytes, say: Callable[[str], object]) -> BinaryReplica:
    try:
        from ronde.server.serving.binary import BinaryReplica
    except ImportError as error:
        raise UsageError(
            f"--binary needs a package that is missing ({error}): pip install 'ronde[serve,server]' [R737]"
        ) from None
    return BinaryReplica(endpoint, token, say)
