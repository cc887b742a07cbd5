"""`ronde run --metrics`: the socket for scrapes, and the server behind it."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import ipaddress
import os
import socket
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ronde.cluster.environment import ClusterEnvironment
from ronde.cluster.listening import bound_socket, in_url
from ronde.errors import LaunchError, UsageError
from ronde.launch.announce import say

if TYPE_CHECKING:
    from ronde.launch.job import LaunchJob

__all__ = ["METRICS_HELP", "metrics_socket", "serving_metrics"]

METRICS_HELP = "Serve metrics for Prometheus at this port of this host; HOST:PORT for others, 0.0.0.0:9464."

_LAST_PORT = 65535
_LOOPBACK = "127.0.0.1"
# The observer of ranks that torchrun has ended and starts again may still hold the port.
_PATIENCE_S = 5.0


def metrics_socket(
    given: str | None, place: ClusterEnvironment | None, *, quiet: bool
) -> socket.socket | None:
    """Bind the socket for scrapes, and tell the user where it is.

    Return None without --metrics, and for all ranks but the first of their host.

    Raises:
        UsageError: the value names no port, or prometheus-client is missing.
        LaunchError: the port is in use, or the address is not of this host.
    """
    if given is None:
        return None
    host, port = _address(given)
    if importlib.util.find_spec("prometheus_client") is None:
        raise UsageError(
            "--metrics needs prometheus-client, which is not installed: pip install 'ronde[metrics]' [R617]"
        )
    if place is not None and place.local_rank:
        return None
    bound = _bound(
        given, host, port, patience=_PATIENCE_S if place is not None and place.restart_count else 0
    )
    asked, (host, port) = port, bound.getsockname()[:2]
    if not quiet or port != asked:
        say(f"metrics are at http://{in_url(host)}:{port}/metrics [R618]")
    if not quiet and not ipaddress.ip_address(host).is_loopback:
        say("whatever reaches that port can read them: there is no authentication [R618]")
    return bound


def serving_metrics(
    job: LaunchJob, scraped: socket.socket | None, since: float = 0.0
) -> AbstractContextManager[None]:
    """Serve the metrics of a job while the context is open.

    Args:
        since: seconds since 1970; older files in the run directory belong to another run.
    """
    if scraped is None:
        return contextlib.nullcontext()
    from ronde.report.metrics.exposition import serving
    from ronde.report.metrics.run_metrics import RunFacts, RunMetrics

    run, directory = job.run, job.run_directory
    facts = RunFacts(
        run_id=directory.run_id,
        script=run.script,
        plan=run.plan,
        seed=run.seed,
        checkpoint_every=run.checkpoint_every if run.checkpoint else None,
        since=since,
    )
    return serving(scraped, RunMetrics(directory.path, facts), directory.path)


def _address(given: str) -> tuple[str, int]:
    host, _, port = given.rpartition(":")
    if not port.isdecimal() or int(port) > _LAST_PORT or (":" in given and not host):
        raise UsageError(
            f"--metrics {given} is neither a port (0 to {_LAST_PORT}) nor HOST:PORT; try --metrics 9464, or "
            "--metrics 0.0.0.0:9464 for scrapes from other hosts [R617]"
        )
    return host.strip("[]") or _LOOPBACK, int(port)


def _bound(given: str, host: str, port: int, *, patience: float) -> socket.socket:
    end = time.monotonic() + patience
    while True:
        bound: socket.socket | None = None
        try:
            bound = bound_socket(host, port)
            # Two sockets may be bound to a port, but only one of them can listen.
            bound.listen()
            return bound
        except OSError as error:
            if bound is not None:
                bound.close()
            if error.errno != errno.EADDRINUSE or time.monotonic() >= end:
                raise _refusal(given, host, error) from None
        time.sleep(0.1)


def _refusal(given: str, host: str, error: OSError) -> LaunchError:
    if error.errno == errno.EADDRINUSE:
        return LaunchError(
            f"--metrics {given}: the port is in use; choose another, or --metrics 0 for "
            "any that is free [R617]"
        )
    told = error.strerror or os.strerror(error.errno or 0)
    return LaunchError(
        f"--metrics {given}: cannot listen at {host} ({told}); name an address of this host, or 0.0.0.0 for "
        "all [R617]"
    )
