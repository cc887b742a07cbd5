"""Ways of synchronising, timed beside each other."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path

import numpy as np
import pytest

from bench.samples import MACHINE
from ronde.bench.kinds import read_report
from ronde.bench.sync.measure import HERE, Training, measure
from ronde.bench.sync.report import SLOW_RANK, Sample, SyncReport, Way, hidden, table
from ronde.testing.hosts import Network


def way(name: str, *rates: float, megabytes: float = 10.0, **fields: object) -> Way:
    samples = tuple(Sample(steps_per_second=rate, megabytes=megabytes) for rate in rates)
    return Way(name=name, place="100mbit", samples=samples, **fields)  # pyright: ignore[reportArgumentType]


def report(*results: Way) -> SyncReport:
    return SyncReport(machine=MACHINE, batch_size=64, target=0.85, results=results)


def test_a_row_has_the_median_of_the_rounds_ratios_and_the_accuracies() -> None:
    trained = way("twobit", 4.0, 6.0, 9.0, steps_to=120, accuracies=(0.85, 0.87))
    *_, row = table(report(way("DDP by hand", 1.0, 2.0, 3.0), trained)).splitlines()
    assert row.split()[:4] == ["100mbit", "twobit", "6.00", "3.00"]
    assert row.endswith("20 s  86.00% (85.00% to 87.00%)")


def test_the_heading_says_which_model() -> None:
    plain = way("twobit", 4.0)
    slow = dataclasses.replace(plain, place=SLOW_RANK)
    assert report(plain).model == "MLP of 5.8 M parameters"
    assert report(plain, slow).model == "MLP of 5.8 M parameters, of 0.67 M where a rank is slow"


def test_what_an_exchange_hides_is_counted_by_its_bytes() -> None:
    """A step alone takes 1 s, DDP's 10 MB take 1 s more; of 5 MB, which would take 0.5 s, 0.1 s is seen."""
    alone, base = way("no exchange", 1.0, megabytes=0), way("DDP by hand", 0.5)
    own = way("async-average", 1 / 1.1, megabytes=5.0)
    assert hidden(own.samples, alone.samples, base.samples) == pytest.approx(0.8)


def test_reports_are_read_again() -> None:
    now = report(way("ddp", 1.0, steps_to=7, accuracies=(0.9,)))
    assert read_report(now.to_json()) == now


def pictures(folder: Path) -> Path:
    """A class of Fashion-MNIST's form for each half that is bright, in its four files."""
    folder.mkdir()
    for part, count in (("train", 2000), ("t10k", 1000)):
        labels = np.arange(count, dtype=np.uint8) % 2
        images = np.zeros((count, 28, 28), np.uint8)
        images[labels == 0, :14], images[labels == 1, 14:] = 200, 200
        with gzip.open(folder / f"{part}-images-idx3-ubyte.gz", "wb") as file:
            file.write(bytes(16) + images.tobytes())
        with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(bytes(8) + labels.tobytes())
    return folder


@pytest.mark.soak
@pytest.mark.timeout(400)  # 12 runs of two ranks
def test_ways_are_timed_and_trained(tmp_path: Path) -> None:
    training = Training(data=pictures(tmp_path / "data"), target=0.9, epochs=1, seeds=2)
    names = ["DDP by hand", "twobit", "local-sgd"]
    told: list[Way] = []
    found = measure(
        names=names, places=[HERE], ranks=2, steps=2, rounds=2, batch_size=1000, training=training,
        networks=lambda hosts, rate: Network(hosts, rate=rate), progress=told.append,
    )  # fmt: skip
    assert [each.name for each in told] == names
    for each in found.results:
        assert len(each.samples) == 2
        assert min(sample.steps_per_second for sample in each.samples) > 0
        assert min(each.accuracies) > 0.9
        assert each.steps_to is not None


def test_a_picture_has_bars_of_rates_and_of_seconds() -> None:
    pytest.importorskip("matplotlib")
    from ronde.bench.sync.picture import draw

    trained = way("twobit", 4.0, 6.0, 9.0, steps_to=120, accuracies=(0.85,))
    rates, seconds = draw(report(way("DDP by hand", 1.0, 2.0, 3.0), trained)).axes
    assert [bar.get_width() for bar in rates.patches] == [2.0, 6.0]
    assert [(bar.get_y() + bar.get_height() / 2, bar.get_width()) for bar in seconds.patches] == [(1.0, 20.0)]
    assert [text.get_text() for text in rates.texts] == ["2, 10 MB", "6, 10 MB"]
    assert draw(report(way("ddp", 1.0))).axes[0].get_title() == "100mbit"
