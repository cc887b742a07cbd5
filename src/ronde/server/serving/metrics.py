"""The metrics of a replica, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import time

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ronde.server.serving.replica import Replica

__all__ = ["Metrics"]

#: Upper ends of the histogram's buckets, in seconds: a look-up takes 50 us to some ms, a prediction more.
BUCKETS = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class Metrics:
    """Prometheus metrics: counts and durations of requests, gauges and counters of the replica.

    Args:
        refused: number of refused messages of the binary protocol, by kind; None if it is not served.
    """

    def __init__(self, replica: Replica, refused: Mapping[str, int] | None = None) -> None:
        self._replica, self._refused = replica, refused
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "ronde_requests",
            "Requests by endpoint, status.",
            ["endpoint", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "ronde_request_seconds",
            "Durations of requests by endpoint.",
            ["endpoint"],
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._registry.register(self)  # pyright: ignore[reportArgumentType]

    def add(self, endpoint: str, status: int | str, seconds: float) -> None:
        """Count a request; `seconds` runs from its last byte to its answer."""
        self._requests.labels(endpoint, status).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield present values; prometheus_client calls this."""
        replica, snapshot = self._replica, self._replica.snapshot
        counts = replica.counts
        lag = float("nan") if replica.lag is None else replica.lag
        hits = counts.found / counts.asked if counts.asked else float("nan")
        age = time() - snapshot.time
        yield _gauge("ronde_version", snapshot.version, help="The version that is served.")
        yield _gauge("ronde_step", snapshot.step, help="Optimizer steps of that version.")
        yield _gauge("ronde_pinned", replica.pinned is not None, help="0 if the newest version is served.")
        yield _gauge("ronde_healthy", not replica.trouble, help="0 if a newer version cannot be served.")
        yield _gauge("ronde_version_age_seconds", age, help="Since the training step of that version.")
        yield _gauge("ronde_lag_seconds", lag, help="From a training step until its version was served.")
        yield CounterMetricFamily("ronde_ids_looked_up", "Ids in all look-ups so far.", counts.asked)
        yield CounterMetricFamily("ronde_ids_found", "Ids among them that had a row.", counts.found)
        yield _gauge("ronde_hit_rate", hits, help="The share of them that had a row.")
        rows = GaugeMetricFamily("ronde_rows", "Rows of a table.", labels=["table"])
        for name, table in snapshot.tables.items():
            rows.add_metric([name], len(table))
        yield rows
        if self._refused is not None:
            refused = CounterMetricFamily(
                "ronde_refused_messages",
                "Refused messages by kind.",
                labels=["kind"],
            )
            for kind, count in list(self._refused.items()):
                refused.add_metric([kind], count)
            yield refused


def _gauge(name: str, value: float, *, help: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help, value)
