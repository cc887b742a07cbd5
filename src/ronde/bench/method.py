"""Methods: repetitions of a measurement, and growth of the batch with ranks."""

from __future__ import annotations

import dataclasses

from ronde.errors import UsageError

__all__ = ["METHODS", "Method"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A rule of measuring.

    Attributes:
        rounds: runs of each contender, unless asked otherwise.
        batch_per_rank: whether the workload's batch is each rank's, not the global one.
        warm_up, steps: steps of every run; None for each workload's own numbers.
        least_ranks: the smallest number of ranks.
    """

    name: str
    rounds: int
    batch_per_rank: bool
    warm_up: int | None
    steps: int | None
    least_ranks: int

    def arguments(self, *, ranks: int, steps: int | None) -> list[str]:
        """Return the arguments of the scripts for the steps that the user asked for.

        Raises:
            UsageError: the method refuses them.
        """
        if ranks < self.least_ranks:
            raise UsageError(
                f"--ranks {ranks} has nothing to compare; with --method {self.name} give --ranks "
                f"{self.least_ranks} or more, or use --method dlperf, which has a row for one device [R850]"
            )
        if self.steps is not None and steps is not None:
            raise UsageError(
                f"--method {self.name} times {self.steps} steps; leave out --steps {steps} [R850]"
            )
        settings = {
            "--steps": steps if self.steps is None else self.steps,
            "--warm-up": self.warm_up,
            "--scale": ranks if self.batch_per_rank else None,
        }
        return [word for key, value in settings.items() if value is not None for word in (key, str(value))]


METHODS = {
    method.name: method
    for method in (
        # What a user asks: the same training, cut into more parts.
        Method(name="global", rounds=9, batch_per_rank=False, warm_up=None, steps=None, least_ranks=2),
        # DLPerf (github.com/Oneflow-Inc/DLPerf, README, "Benchmark Test Scopes", "Median Value Principle",
        # "Throughput"): batch size is per device, the first 20 steps are ignored and the 100 behind them
        # timed, every case runs 7 times and the median counts.
        Method(name="dlperf", rounds=7, batch_per_rank=True, warm_up=20, steps=100, least_ranks=1),
    )
}
