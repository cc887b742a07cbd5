"""Advice on a loader's workers, from the times of a run.

With `n` workers a batch takes as long as the slowest of three: what the script does with it, its loading
divided by `n`, and the processor time of both divided by the cores of a rank. So workers help where loading
waits for disks or networks, or where cores are idle, and this is said only then.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

__all__ = ["LoaderTimes", "advice", "is_much"]

# Fewest batches for an estimate, and the share of the run and the seconds that advice must save.
_FEWEST = 20
_SHARE, _SECONDS = 0.1, 1.0
# Seconds that a worker's batch costs the script, and seconds in which a worker starts.
_HANDED_OVER, _STARTED = 0.001, 0.05
# Share of the time in which a rank waits for a core: workers would wait too.
_BUSY = 0.1
# Spare workers, since batches take unequal time; and the most that are advised.
_SPARE, _MOST = 1.1, 64


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LoaderTimes:
    """Times of a loader on one rank, the means of its batches in seconds.

    Attributes:
        dataset: name of its dataset's class.
        workers: its `num_workers`.
        persistent: its `persistent_workers`.
        epochs: number of iterators.
        batches: number of batches, without the first of each iterator.
        used: time between a batch and the request for the next one.
        waited: time between that request and the next batch, without waiting for other ranks.
        first: the same for the first batch of an iterator.
        loading: time in which one process loads a batch of this rank.
        loading_processor: processor time of that.
        script_processor: processor time of this rank for each batch, without loading.
        queued: share of the time in which the rank was ready to run, and other programs had its core.
        size: bytes of this rank's part of a batch, if it is not pinned and there is a device; else 0.
        copied, copied_pinned: time in which so much is copied to the device, from pageable and from pinned
            memory; 0 if not measured.
    """

    dataset: str
    workers: int
    persistent: bool
    epochs: int
    batches: int
    used: float
    waited: float
    first: float
    loading: float
    loading_processor: float
    script_processor: float
    queued: float = 0.0
    size: int = 0
    copied: float = 0.0
    copied_pinned: float = 0.0

    @property
    def seconds(self) -> float:
        """The time of all batches."""
        return self.batches * (self.used + self.waited) + self.epochs * self.first


def advice(loaders: Sequence[LoaderTimes], *, cores: float, seconds: float) -> str:
    """Return the setting that would save most of a run's time; "" without one.

    Args:
        cores: cores of this rank.
        seconds: duration of the run.
    """
    found = [
        each
        for times in loaders
        for each in (_more_workers(times, cores), _persistent(times), _pinned(times))
    ]
    saved, words = max(found, default=(0.0, ""))
    return words if is_much(saved, seconds) else ""


def is_much(saved: float, seconds: float) -> bool:
    """Return whether to mention seconds that could be saved in a run of `seconds`."""
    return saved >= max(_SECONDS, _SHARE * seconds)


def _more_workers(times: LoaderTimes, cores: float) -> tuple[float, str]:
    """Return the seconds that more workers would save, and how to have them."""
    if times.batches < _FEWEST or times.queued > _BUSY:
        return 0.0, ""
    handed = 0.0 if times.workers else _HANDED_OVER
    by_cores = (times.script_processor + times.loading_processor + handed) / cores
    bound = max(times.used + handed, by_cores)
    workers = min(_MOST, max(times.workers + 1, math.ceil(_SPARE * times.loading / bound)))
    then, now = max(bound, times.loading / workers), times.used + times.waited
    # Workers also have to start, once if they persist.
    saved = times.batches * (now - then) - _STARTED * (workers - times.workers)
    persist = ", persistent_workers=True" if times.epochs > 1 else ""
    return saved, (
        f"{times.waited / now:.0%} of the time of a batch was waiting for {times.dataset}: a batch is loaded "
        f"in {_ms(times.loading)} ms and used in {_ms(times.used)} ms. DataLoader(..., num_workers={workers}"
        f"{persist}) in place of {times.workers} would take about {_ms(then)} ms a batch in place of "
        f"{_ms(now)} ms (cores per rank: {cores:.3g}) [R323]"
    )


def _persistent(times: LoaderTimes) -> tuple[float, str]:
    """Return the seconds that persistent workers would save, and how to have them."""
    if not times.workers or times.persistent or times.epochs < 2:
        return 0.0, ""
    late = times.first - times.loading
    return (times.epochs - 1) * late, (
        f"workers of {times.dataset} started anew {times.epochs} times, and the first batch then came after "
        f"{_ms(times.first)} ms: DataLoader(..., persistent_workers=True) keeps them [R323]"
    )


def _pinned(times: LoaderTimes) -> tuple[float, str]:
    """Return the seconds that pinned batches would save: workers load while a thread pins."""
    if not times.workers or not times.copied:
        return 0.0, ""
    return times.batches * (times.copied - times.copied_pinned), (
        f"a batch of {times.dataset}, {_mb(times.size)} MB for each rank, is copied to the device in "
        f"{_ms(times.copied)} ms, and in {_ms(times.copied_pinned)} ms from pinned memory, by a measurement "
        "after the run: DataLoader(..., pin_memory=True) and .to(device, non_blocking=True) [R324]"
    )


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f}" if size >= 1e8 else f"{size / 1e6:.1f}"


def _ms(seconds: float) -> str:
    """Format milliseconds with two or three digits.

    >>> _ms(0.00034), _ms(0.0021), _ms(1.234)
    ('0.3', '2.1', '1234')
    """
    value = seconds * 1000
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
