"""What is advised on a loader's workers, by times as they were measured."""

from __future__ import annotations

import dataclasses

from codes import without_code
from ronde.trace.loader_advice import LoaderTimes, advice

# Files that come over a network: 40 ms a batch, in which the processor is idle.
REMOTE = LoaderTimes(
    dataset="Remote", workers=0, persistent=False, epochs=2, batches=198,
    used=0.010, waited=0.040, first=0.04, loading=0.040, loading_processor=0.004, script_processor=0.010,
)  # fmt: skip
# Images that are decoded: the processor has 40 ms of work.
DECODED = dataclasses.replace(REMOTE, dataset="Images", loading_processor=0.040)


def said(*loaders: LoaderTimes, cores: float = 1, seconds: float = 10.0) -> str:
    return without_code(advice(loaders, cores=cores, seconds=seconds))


def test_loading_that_waits_is_spread_over_workers() -> None:
    assert said(REMOTE) == (
        "80% of the time of a batch was waiting for Remote: a batch is loaded in 40 ms and used in 10 ms. "
        "DataLoader(..., num_workers=3, persistent_workers=True) in place of 0 would take about 15 ms a "
        "batch in place of 50 ms (cores per rank: 1)"
    )


def test_loading_that_computes_needs_idle_cores() -> None:
    assert said(DECODED, cores=1) == ""
    assert "num_workers=2," in said(DECODED, cores=2)
    assert "about 26 ms a batch in place of 50 ms" in said(DECODED, cores=2)
    assert "num_workers=5, persistent_workers=True)" in said(DECODED, cores=16)


def test_enough_workers_are_told_nothing() -> None:
    enough = dataclasses.replace(REMOTE, workers=4, waited=0.0002)
    assert said(enough) == said(enough, cores=16) == ""


def test_too_few_workers_get_more() -> None:
    few = dataclasses.replace(REMOTE, workers=2, waited=0.010)
    assert "num_workers=4, persistent_workers=True) in place of 2" in said(few)


def test_workers_that_have_the_cores_get_no_more() -> None:
    few = dataclasses.replace(DECODED, workers=2, waited=0.015, loading=0.05)
    assert said(few, cores=2) == ""


def test_batches_quicker_than_a_worker_hands_over_are_left() -> None:
    tiny = dataclasses.replace(
        REMOTE, batches=20_000, used=0.0005,
        waited=0.0004, first=0.0004, loading=0.0004, loading_processor=0.0004,
    )  # fmt: skip
    assert said(tiny, cores=16, seconds=18.0) == ""


def test_where_other_programs_have_the_cores_nothing_is_said() -> None:
    assert said(dataclasses.replace(REMOTE, queued=0.2)) == ""
    assert said(dataclasses.replace(REMOTE, queued=0.05))


def test_little_is_not_worth_a_note() -> None:
    assert said() == ""
    assert said(REMOTE, seconds=200.0) == ""  # a small part of the run
    assert said(dataclasses.replace(REMOTE, batches=19), seconds=0.5) == ""
    assert said(dataclasses.replace(REMOTE, batches=25), seconds=1.0) == ""  # less than a second


def test_the_loader_that_costs_most_is_named() -> None:
    small = dataclasses.replace(REMOTE, dataset="Small", batches=40)
    assert "Remote" in said(small, REMOTE)


def test_batches_are_pinned_where_that_was_measured_to_save() -> None:
    copied = dataclasses.replace(
        REMOTE, workers=4, waited=0.0, batches=1000, size=38_535_168, copied=0.0061, copied_pinned=0.0008
    )  # fmt: skip
    assert said(copied, seconds=15.0) == (
        "a batch of Remote, 38.5 MB for each rank, is copied to the device in 6.1 ms, and in 0.8 ms from "
        "pinned memory, by a measurement after the run: DataLoader(..., pin_memory=True) and .to(device, "
        "non_blocking=True)"
    )
    assert said(copied, seconds=60.0) == ""
    assert said(dataclasses.replace(copied, copied_pinned=0.006), seconds=15.0) == ""
    # Without workers the script itself would wait until a batch is pinned.
    assert "pin_memory" not in said(dataclasses.replace(copied, workers=0), seconds=15.0)


def test_workers_that_start_anew_are_kept() -> None:
    anew = dataclasses.replace(REMOTE, workers=4, epochs=30, batches=150, waited=0.0, first=0.3)
    assert said(anew, seconds=12.0) == (
        "workers of Remote started anew 30 times, and the first batch then came after 300 ms: "
        "DataLoader(..., persistent_workers=True) keeps them"
    )
    assert said(dataclasses.replace(anew, persistent=True), seconds=12.0) == ""
