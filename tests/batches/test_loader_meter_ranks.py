"""What is measured of loaders, and when workers are advised."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from alone import alone
from ronde.batches import loader_meter
from ronde.batches.loader_meter import LoaderMeter
from ronde.patching.patches import Patches
from ronde.testing.run_ranks import Rank
from ronde.trace.loader_advice import LoaderTimes


class _Remote(Dataset[Any]):
    """Samples for which one has to wait."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.ones(2)


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return (_Remote()[index] for index in range(12))


def _measured(loader: DataLoader[Any], epochs: int = 2) -> list[LoaderTimes]:
    patches, meter = Patches(), LoaderMeter(lambda: True, lambda: 0, None)
    meter.install(patches)
    try:
        for _ in range(epochs):
            for _ in loader:
                time.sleep(0.001)
    finally:
        patches.restore()
    return meter.times()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dataset", [_Remote(), _Stream()])
def test_loading_and_use_are_told_apart(dataset: Dataset[Any], workers: int) -> None:
    (times,) = _measured(DataLoader(dataset, 4, num_workers=workers))
    assert (times.dataset, times.workers, times.epochs, times.batches) == (
        type(dataset).__name__, workers, 2, 4
    )  # fmt: skip
    assert times.loading >= 4 * 0.002
    assert times.used >= 0.001
    assert times.first >= 4 * 0.002
    assert 0 <= times.loading_processor < times.loading
    if not workers:
        assert times.waited == times.loading


def test_time_without_a_core_is_counted_from_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.perf_counter_ns()
    queue = itertools.chain([5_000_000], itertools.repeat(15_000_000))
    monkeypatch.setattr(loader_meter, "queued_ns", lambda: next(queue))
    (times,) = _measured(DataLoader(_Remote(), 4))
    assert 0.01 / ((time.perf_counter_ns() - begun) / 1e9) < times.queued < 0.01 / (6 * 0.008)


def test_loaders_of_each_epoch_are_one_and_those_without_gradients_another() -> None:
    patches, meter = Patches(), LoaderMeter(lambda: True, lambda: 0, None)
    meter.install(patches)
    for _ in range(3):
        list(DataLoader(torch.arange(6), 2))  # pyright: ignore[reportArgumentType]
        with torch.no_grad():
            list(DataLoader(torch.arange(4), 2))  # pyright: ignore[reportArgumentType]
    patches.restore()
    assert [(times.epochs, times.batches) for times in meter.times()] == [(3, 6), (3, 3)]


def test_copies_are_measured_where_workers_load_large_batches() -> None:
    asked: list[tuple[int, bool]] = []

    def copy(size: int, pinned: bool) -> float:
        asked.append((size, pinned))
        return 0.01 if pinned else 0.5

    patches, meter = Patches(), LoaderMeter(lambda: True, lambda: 0, copy)
    meter.install(patches)
    batch = torch.zeros(1).expand(500_000_000)  # two gigabytes, without memory
    loader: Any = DataLoader([batch] * 4, None, num_workers=1, collate_fn=_same)  # pyright: ignore[reportArgumentType]
    assert [each.nbytes for each in loader] == [2_000_000_000] * 4
    patches.restore()
    (note,) = meter.advice(1, time.perf_counter_ns() - 500_000_000)
    assert note.startswith(
        "a batch of list, 2000 MB for each rank, is copied to the device in 500 ms, and in 10 ms"
    )
    assert asked == [(2_000_000_000, False), (2_000_000_000, True)]


def _same(batch: Any) -> Any:
    return batch


def test_a_script_without_loaders_is_told_nothing(tmp_path: Path) -> None:
    with alone(tmp_path, "micro-batches=2") as session:
        assert session._meter.times() == []
        assert not any("R323" in note for note in session.summary().notes)


def _cut(rank: Rank) -> int:
    with rank.session() as session:
        loader = DataLoader(_Remote(), 4, num_workers=1)
        for _ in range(3):
            list(loader)
        (counts,) = session._meter._counts.values()
        assert counts.times().loading >= 2 * 0.002
    return counts.shares[2]


def test_of_a_cut_batch_this_ranks_samples_count(ranks: Any) -> None:
    # A worker may be asked for the first batches before it is known that they can be cut.
    assert all(count >= 3 for count in ranks(2, _cut))
