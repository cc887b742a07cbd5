"""Sample of one measured run, found in the output of the run."""

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
        workload: the name of the workload.
        batch_size: samples of a global batch.
        samples_per_second: speed in the timed steps.
        steps, seconds: the number of timed steps, and their time.
        loss: the loss of the last global batch.
        losses: the losses of all global batches, where the run was asked for its trajectory.
        threads: threads of each process.
        torch: the version of torch.
        device: `cpu`, or the name of the CUDA device.
        wall_seconds: time from the start of the first process to the end of the last.
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
    """Read the line of a workload's output that has its figures.

    Raises:
        BenchError: the line is missing, printed more than once, or has another form.
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
