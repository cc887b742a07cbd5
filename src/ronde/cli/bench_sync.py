"""Measurement of `ronde bench sync`, from its options."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ronde.bench.choice import check_known
from ronde.bench.sync.contender import CONTENDERS
from ronde.bench.sync.measure import HERE, Training, measure
from ronde.bench.sync.report import SLOW_RANK, SyncReport, Way
from ronde.errors import UsageError

__all__ = ["PLACES", "sync_report"]

PLACES = {"100mbit": "100mbit", "1gbit": "1gbit", "host": HERE, "slow-rank": SLOW_RANK}


def sync_report(  # noqa: PLR0913 - the options of a command
    *,
    ways: list[str],
    places: list[str],
    ranks: int,
    steps: int,
    rounds: int,
    batch_size: int,
    data: Path | None,
    target: float | None,
    epochs: int | None,
    seeds: int | None,
) -> SyncReport:
    """Measure.

    Raises:
        UsageError: an unknown way or place; a target without pictures to be right about, or what
            belongs to a target without one; no network can be made.
    """
    check_known(ways, CONTENDERS, what="way")
    check_known(places, PLACES, what="place")
    if target is not None and (data is None or not (data / "train-images-idx3-ubyte.gz").exists()):
        raise UsageError(
            f"--target {target:g} needs --data FOLDER with Fashion-MNIST "
            "(train-images-idx3-ubyte.gz and the three other files; Debian's package "
            "dataset-fashion-mnist has them in /usr/share/datasets/fashion-mnist) [R850]"
        )
    if target is None and (data, epochs, seeds) != (None, None, None):
        raise UsageError(
            "--data, --epochs and --seeds are of runs to an accuracy; give it by --target [R850]"
        )
    from ronde.testing.hosts import HostsUnavailable

    training = None
    if target is not None and data is not None:
        training = Training(data=data, target=target, epochs=epochs or 3, seeds=seeds or 1)
    try:
        return measure(
            names=ways,
            places=[PLACES[each] for each in places],
            ranks=ranks,
            steps=steps,
            rounds=rounds,
            batch_size=batch_size,
            training=training,
            networks=_network,
            progress=_say,
        )
    except HostsUnavailable as reason:
        raise UsageError(f"{reason}; use --places host, which needs no network [R850]") from None


def _network(hosts: int, rate: str) -> AbstractContextManager[Any]:
    from ronde.testing.hosts import Network

    return Network(hosts, rate=rate)


def _say(way: Way) -> None:
    rates = ", ".join(f"{sample.steps_per_second:.2f}" for sample in way.samples)
    print(f"ronde: {way.place}, {way.name}: {rates} steps/s", file=sys.stderr, flush=True)
