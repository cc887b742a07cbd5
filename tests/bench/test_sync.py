"""Ways of synchronising, timed beside each other."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.sync.figures import SLOW_RANK, Sample, Way, hidden, notes_of, rows_of
from benchmarks.sync.measure import Training, measure, training_of
from ronde.errors import UsageError


def way(name: str, *rates: float, megabytes: float = 10.0, **fields: object) -> Way:
    samples = tuple(Sample(steps_per_second=rate, megabytes=megabytes) for rate in rates)
    return Way(name=name, place="100mbit", samples=samples, **fields)  # pyright: ignore[reportArgumentType]


def test_a_row_has_the_rounds_ratios_and_the_accuracies() -> None:
    trained = way("twobit", 4.0, 6.0, 9.0, steps_to=120, accuracies=(0.85, 0.87))
    _, row = rows_of([way("DDP by hand", 1.0, 2.0, 3.0), trained])
    assert row.labels == {"between": "100mbit", "way": "twobit"}
    assert row.samples["times DDP by hand"] == (4.0, 3.0, 3.0)
    assert row.samples["time to accuracy"] == (20.0,)
    assert [row.samples[name] for name in ("accuracy", "least", "most")] == [(86.0,), (85.0,), (87.0,)]


def test_a_note_says_which_model() -> None:
    plain = way("twobit", 4.0)
    slow = dataclasses.replace(plain, place=SLOW_RANK)
    assert notes_of([plain]) == ("MLP of 5.8 M parameters",)
    assert notes_of([plain, slow]) == ("MLP of 5.8 M parameters, of 0.67 M where a rank is slow",)


def test_what_an_exchange_hides_is_counted_by_its_bytes() -> None:
    """A step alone takes 1 s, DDP's 10 MB take 1 s more; of 5 MB, which would take 0.5 s, 0.1 s is seen."""
    alone, base = way("no exchange", 1.0, megabytes=0), way("DDP by hand", 0.5)
    own = way("async-average", 1 / 1.1, megabytes=5.0)
    assert hidden(own, alone, base) == pytest.approx(0.8)


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
    told: list[str] = []
    found = measure(
        names=names, places=["host"], ranks=2, steps=2, rounds=2, batch_size=1000, training=training,
        say=told.append,
    )  # fmt: skip
    assert [each.split(": ")[0] for each in told] == [f"one host, {name}" for name in names]
    for each in found.results:
        assert len(each.samples["speed"]) == 2
        assert min(each.samples["speed"]) > 0
        assert min(each.samples["by seed"]) > 90
        assert each.samples["steps to accuracy"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": 0.9}, "--target 0.9 needs --data FOLDER with Fashion-MNIST"),
        ({"seeds": 2}, "--data, --epochs and --seeds are of runs to an accuracy; give it by --target"),
    ],
)
def test_options_of_runs_to_an_accuracy_go_together(options: dict[str, Any], message: str) -> None:
    nothing: dict[str, Any] = {"data": None, "target": None, "epochs": None, "seeds": None}
    assert training_of(**nothing) is None
    with pytest.raises(UsageError, match=message):
        training_of(**{**nothing, **options})
