"""Rates over the steady part of a run, without its first step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ronde.trace.step_file import StepRecord

__all__ = ["Pace", "pace_of", "steady"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Counts and times of a rank over a part of a run.

    Attributes:
        seconds: duration of that part.
        steps, samples: how many it made, and on how many rows.
        data: seconds of waiting for a loader's batches.
        waited: seconds of waiting for other ranks or for servers.
    """

    seconds: float
    steps: int
    samples: int
    data: float
    waited: float

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds

    @property
    def data_share(self) -> float:
        return self.data / self.seconds

    @property
    def communication_share(self) -> float:
        return self.waited / self.seconds


def steady(course: Sequence[StepRecord]) -> Sequence[StepRecord]:
    """Select the records of steps after the first, up to the last step."""
    steps = [each for each in course if each.steps]
    return steps[1:] if len(steps) > 1 and steps[0].steps == 1 else steps


def pace_of(course: Sequence[StepRecord]) -> Pace | None:
    """Compute the pace of a course's steady part; None if it took no time."""
    records = steady(course)
    seconds = sum(each.seconds for each in records)
    if seconds <= 0:
        return None
    return Pace(
        seconds=seconds,
        steps=sum(each.steps for each in records),
        samples=sum(each.samples for each in records),
        data=sum(each.data for each in records) / 1e9,
        waited=sum(each.waited for each in records) / 1e9,
    )
