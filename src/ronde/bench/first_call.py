"""`ronde bench first-call`: what the observed first call of a model costs, beside a step of its training."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence

from ronde.bench.choice import check_known
from ronde.bench.columns import columns
from ronde.bench.contenders import FOLDER
from ronde.bench.json_report import made_of, written
from ronde.bench.machine import Machine
from ronde.bench.process_set import Process, run_together
from ronde.bench.sample import MARK
from ronde.errors import BenchError
from ronde.trace.memory import show_bytes

__all__ = ["KIND", "USUAL", "WORKLOADS", "FirstCall", "FirstCallReport", "measure", "table"]

KIND = "first-call"
USUAL = ("resnet18-bn", "swin-t", "gpt-12")
WORKLOADS = (*USUAL, "resnet18-gn", "gpt", "transformer", "bert", "mlp", "mlp-20k")
_TIMEOUT = 900.0
# A training by which the share of all observed and compared calls is told.
_TRAINING = 200


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FirstCall:
    """One run of a workload's script.

    Attributes:
        first_call: seconds of the first call of the model.
        seconds: of every step, with the call in it.
        peaks: the most bytes that the process of rank 0 held in every step, beyond what it held before there
            was a model.
        loss: of the last batch.
    """

    workload: str
    batch_size: int
    first_call: float
    seconds: tuple[float, ...]
    peaks: tuple[int, ...]
    loss: float

    @property
    def step(self) -> float:
        """Seconds of a usual step."""
        return statistics.median(self.seconds[1:])

    @property
    def peak(self) -> float:
        """Bytes of a usual step."""
        return statistics.median(self.peaks[1:])

    @property
    def calls(self) -> float:
        """The first call, in steps."""
        return self.first_call / self.step

    @property
    def memory(self) -> float:
        """The first step's memory over that of a usual one."""
        return self.peaks[0] / self.peak

    @property
    def share(self) -> float:
        """Of a training of 200 steps: what its first and its compared calls take beyond usual steps."""
        compared = [place - 1 for place in _doubled(len(self.seconds))]
        later = statistics.median(self.seconds[place] - self.step for place in compared)
        more = self.seconds[0] - self.step + len(_doubled(_TRAINING)) * max(later, 0.0)
        return more / (_TRAINING * self.step)


def _doubled(most: int) -> list[int]:
    """2, 4, 8 and so on: the calls that are compared."""
    return [1 << power for power in range(1, most.bit_length()) if 1 << power <= most]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FirstCallReport:
    """One invocation of `ronde bench first-call`."""

    machine: Machine
    ranks: int
    plan: str
    results: tuple[FirstCall, ...]

    def to_json(self) -> str:
        return written(
            KIND, self, lambda each: {"calls": each.calls, "memory": each.memory, "share": each.share}
        )


def measure(
    workloads: Sequence[str],
    *,
    ranks: int,
    plan: str,
    environment: Mapping[str, str],
    progress: Callable[[FirstCall], None],
) -> FirstCallReport:
    """Run each workload's script on ranks.

    Args:
        progress: hears of each.

    Raises:
        UsageError: for a workload that there is not.
        BenchError: when a run fails.
    """
    check_known(workloads, WORKLOADS, what="workload")
    machine = Machine.here()
    results: list[FirstCall] = []
    for workload in workloads:
        results.append(_run(workload, ranks=ranks, plan=plan, environment=environment))
        progress(results[-1])
    return FirstCallReport(machine=machine, ranks=ranks, plan=plan, results=tuple(results))


def _run(workload: str, *, ranks: int, plan: str, environment: Mapping[str, str]) -> FirstCall:
    options = ("--ranks", str(ranks), "--plan", plan, "--seed", "0")
    script = (str(FOLDER / "first_call.py"), workload, "--warm-up", "0", "--steps", "16")
    with tempfile.TemporaryDirectory(prefix="ronde-bench-run-") as folder:
        command = (sys.executable, "-m", "ronde", "run", *options, "--run-dir", folder, *script)
        output, _ = run_together([Process(command=command, environment=environment)], timeout=_TIMEOUT)
    lines = [each for each in output.splitlines() if each.startswith(MARK)]
    if len(lines) != 1:
        raise BenchError(
            f"a workload must print one line that begins with {MARK!r}, this one printed {len(lines)}; "
            f"its output ends with: {output[-300:]!r} [R853]"
        )
    return made_of(FirstCall, json.loads(lines[0].removeprefix(MARK)))


def table(report: FirstCallReport) -> str:
    """What was measured, under a line that says of what."""
    machine = report.machine
    heading = (
        f"{report.ranks} ranks, plan {report.plan}, on {machine.cpu}, {machine.cores} cores; "
        f"torch {machine.torch}"
    )
    rows = [("workload", "first call", "step", "ratio", "first peak", "a step's", "ratio", "of 200 steps")]
    rows += [
        (
            each.workload,
            f"{each.first_call * 1000:.0f} ms",
            f"{each.step * 1000:.0f} ms",
            f"{each.calls:.2f}",
            show_bytes(each.peaks[0]),
            show_bytes(int(each.peak)),
            f"{each.memory:.2f}",
            f"{each.share * 100:.1f} %",
        )
        for each in report.results
    ]
    return f"{heading}\n\n{columns(rows)}"
