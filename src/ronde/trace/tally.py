"""What one rank counts while its script runs: steps, samples, time spent on data, calls that were cut."""

from __future__ import annotations

from time import perf_counter_ns

from ronde.trace.pulse import Pulse

__all__ = ["Tally"]


class Tally:
    """Plain numbers, added to where things happen; each addition takes less than a microsecond.

    **Samples** are rows of training batches, each batch once. A batch is counted at the first call of a
    module in training mode, with gradients on, after a loader delivered it; further modules and further
    backwards of the same batch add nothing, and evaluation is not counted. In a script without a
    loader a batch begins after each backward. Of several loaders read in step (`zip`) the rows of the
    first call count. A script that calls no module on a batch has no samples.

    Attributes:
        steps: steps of all optimizers.
        samples: see above.
        data_ns: nanoseconds in which the script waited for a loader's next batch.
        sharded: how often modules of each class were called on shards.
        pulse: what the launcher sees of it; only the main rank has one.
    """

    __slots__ = (
        "_delivered",
        "_first",
        "_fresh",
        "_last",
        "begun_ns",
        "data_ns",
        "pulse",
        "samples",
        "sharded",
        "steps",
    )

    def __init__(self, pulse: Pulse | None = None) -> None:
        self.begun_ns = perf_counter_ns()
        self.steps = 0
        self.samples = 0
        self.data_ns = 0
        self.sharded: dict[str, int] = {}
        self.pulse = pulse
        self._fresh = True
        self._delivered = False
        self._first: tuple[int, int] | None = None
        self._last = (0, 0)

    def begin(self) -> None:
        """The script starts now."""
        self.begun_ns = perf_counter_ns()

    def deliver(self, spent_ns: int) -> None:
        """A loader has handed out a batch, for which the script waited so long."""
        self.data_ns += spent_ns
        self._fresh = self._delivered = True

    def train_on(self, rows: int) -> None:
        """A module is called in training on a batch of so many rows."""
        if self._fresh:
            self._fresh = False
            self.samples += rows

    def cut(self, name: str) -> None:
        """A module of this class has run on shards."""
        self.sharded[name] = self.sharded.get(name, 0) + 1

    def backward(self) -> None:
        """A backward is done; batches come from elsewhere when no loader delivered since the one before."""
        if not self._delivered:
            self._fresh = True
        self._delivered = False

    def step(self) -> None:
        """An optimizer has stepped."""
        self.steps += 1
        self._last = (perf_counter_ns(), self.samples)
        if self._first is None:
            self._first = self._last
        if self.pulse is not None:
            self.pulse.beat(self.steps, self.samples)

    def rates(self) -> tuple[float, float] | None:
        """Steps and samples per second from the first step to the last; the first one warms up.

        None for fewer than two steps.
        """
        if self._first is None or self.steps < 2 or self._last[0] <= self._first[0]:
            return None
        seconds = (self._last[0] - self._first[0]) / 1e9
        return (self.steps - 1) / seconds, (self._last[1] - self._first[1]) / seconds
