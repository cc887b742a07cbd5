"""What one measured run read, and how it is found in what the run printed."""

from __future__ import annotations

import dataclasses
import json
import math

from ronde.errors import BenchError

__all__ = ["Sample", "parse"]

MARK = "bench-line "


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One measured run.

    Attributes:
        workload: its name.
        batch_size: samples of a global batch.
        samples_per_second: of the timed steps.
        steps, seconds: how many were timed, and how long they took together.
        loss: of the last global batch.
        losses: of every global batch, where the run was asked for its trajectory.
        threads: of each process.
        torch: its version.
        device: `cpu`, or the name of the CUDA device.
        wall_seconds: from the start of the first process to the end of the last.
    """

    workload: str
    batch_size: int
    samples_per_second: float
    steps: int
    seconds: float
    loss: float
    losses: tuple[float, ...]
    threads: int
    torch: str
    device: str
    wall_seconds: float

    @property
    def step_microseconds(self) -> float:
        return self.seconds / self.steps * 1e6


def parse(output: str, *, wall_seconds: float) -> Sample:
    """Read the one line that a workload prints for us.

    Raises:
        BenchError: when the line is missing, is there more than once, or is not what workloads print.
    """
    lines = [line for line in output.splitlines() if line.startswith(MARK)]
    if len(lines) != 1:
        raise BenchError(
            f"a workload must print one line that begins with {MARK!r}, this one printed {len(lines)}; "
            f"its output ends with: {output[-300:]!r} [R853]"
        )
    try:
        fields = json.loads(lines[0].removeprefix(MARK))
        sample = Sample(**{**fields, "losses": tuple(fields["losses"])}, wall_seconds=wall_seconds)
    except (ValueError, TypeError, KeyError) as error:
        raise BenchError(
            f"cannot read {lines[0]!r} ({error}); print it with workloads/stopwatch.py [R853]"
        ) from error
    if not (sample.steps > 0 and sample.seconds > 0 and math.isfinite(sample.samples_per_second)):
        raise BenchError(f"a workload timed nothing: {lines[0]!r}; give it at least one step [R853]")
    return sample
