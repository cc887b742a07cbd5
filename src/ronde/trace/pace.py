"""Rates over the steady part of a run, without its first step."""

from __future__ import annotations

import dataclasses

__all__ = ["Pace"]


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
