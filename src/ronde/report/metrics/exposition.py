"""Prometheus' form of a run's metrics, and the server that answers with it."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import make_wsgi_app

from ronde.report.metrics.families import FAMILIES
from ronde.report.metrics.run_metrics import RunMetrics, Values
from ronde.trace.whole_file import replace_file

__all__ = ["FILE", "serving", "text"]

FILE = "metrics.prom"
"""File of the run directory with the last values."""

# Several scrapers within this time are answered alike.
_FRESH_S = 0.5
_PATIENCE_S = 10


def text(values: Values) -> bytes:
    """Return the values in Prometheus' text format."""
    return generate_latest(_registry(lambda: values))


@contextlib.contextmanager
def serving(listening: socket.socket, metrics: RunMetrics, directory: Path) -> Iterator[None]:
    """Answer scrapes while the block runs, then write the last values into the directory.

    Args:
        listening: a bound socket, which is closed at the end.
    """
    server = _Server(listening, _Fresh(metrics.values))
    thread = threading.Thread(target=server.serve_forever, name="ronde-metrics", daemon=True)
    with _without_signals():
        thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        if directory.exists():
            replace_file(directory / FILE, text(metrics.values()).decode())


@contextlib.contextmanager
def _without_signals() -> Iterator[None]:
    """Start threads that get no signal.

    The launcher waits for signals in its main thread.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@final
class _Fresh:
    """Values that are read anew when they are old; thread-safe."""

    def __init__(self, read: Callable[[], Values]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._values: Values = {}
        self._until = 0.0

    def __call__(self) -> Values:
        with self._lock:
            if time.monotonic() >= self._until:
                self._values = self._read()
                self._until = time.monotonic() + _FRESH_S
            return self._values


@final
class _Collector:
    """Source of metrics for prometheus_client."""

    def __init__(self, read: Callable[[], Values]) -> None:
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        values = self._read()
        for family in FAMILIES:
            if family.name not in values:
                continue
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            made = kind(family.name, family.help, labels=family.labels)
            for labels, value in values[family.name].items():
                made.add_metric(labels, value)
            yield made


def _registry(read: Callable[[], Values]) -> CollectorRegistry:
    # Without `describe` the registry would collect once to know the names.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(read))  # pyright: ignore[reportArgumentType]
    return registry


class _Handler(WSGIRequestHandler):
    """Handler without a log; one that waits for its client ends after a time."""

    timeout = _PATIENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: stderr is the user's."""


@final
class _Server(ThreadingMixIn, WSGIServer):
    """Server on a socket that was bound before; a thread for each scrape."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, read: Callable[[], Values]) -> None:
        address = listening.getsockname()[:2]
        WSGIServer.__init__(self, address, _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_name, self.server_port = str(address[0]), int(address[1])
        self.setup_environ()
        self.set_app(make_wsgi_app(_registry(read)))
        self.server_activate()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over a client that went away."""
