"""Cost of the observed first call of a model: `python -m benchmarks.first_call`.

It prints the time of the call in steps, the memory of the first step over a usual one's, and the share that
observed and compared calls take of 200 steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.report_options import add_options, say, show
from ronde.bench.choice import check_known
from ronde.bench.contenders import FOLDER
from ronde.bench.machine import Machine
from ronde.bench.process_set import Process, run_together
from ronde.bench.report import Quantity, Report, Result, made_of
from ronde.bench.sample import MARK
from ronde.errors import BenchError

__all__ = ["USUAL", "WORKLOADS", "FirstCall", "main", "measure", "row_of"]

USUAL = ("resnet18-bn", "swin-t", "gpt-12")
WORKLOADS = (*USUAL, "resnet18-gn", "gpt", "transformer", "bert", "mlp", "mlp-20k")
QUANTITIES = {
    "first call": Quantity(unit="ms"),
    "step": Quantity(unit="ms"),
    "in steps": Quantity(unit="x"),
    "first peak": Quantity(unit="bytes"),
    "peak of a step": Quantity(unit="bytes"),
    "of peaks": Quantity(unit="x"),
    "of 200 steps": Quantity(unit="%"),
}
SCRIPT = Path(__file__).with_name("script.py")
_TIMEOUT = 900.0
# Steps of a training of which the share of all observed and compared calls is given.
_TRAINING = 200


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FirstCall:
    """One run of a workload's script.

    Attributes:
        first_call: seconds of the first call of the model.
        seconds: seconds of every step, with the call in it.
        peaks: the most bytes of rank 0's process in every step, beyond its bytes before the model.
        loss: the loss of the last batch.
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
        """Length of the first call in steps."""
        return self.first_call / self.step

    @property
    def memory(self) -> float:
        """The first step's memory over that of a usual one."""
        return self.peaks[0] / self.peak

    @property
    def share(self) -> float:
        """Share of the first and the compared calls, beyond usual steps, in 200 steps."""
        compared = [place - 1 for place in _doubled(len(self.seconds))]
        later = statistics.median(self.seconds[place] - self.step for place in compared)
        more = self.seconds[0] - self.step + len(_doubled(_TRAINING)) * max(later, 0.0)
        return more / (_TRAINING * self.step)


def _doubled(most: int) -> list[int]:
    """Return 2, 4, 8 and so on: the numbers of the compared calls."""
    return [1 << power for power in range(1, most.bit_length()) if 1 << power <= most]


def measure(
    workloads: Sequence[str], *, ranks: int, plan: str, environment: Mapping[str, str]
) -> list[FirstCall]:
    """Run each workload's script on ranks.

    Raises:
        UsageError: a workload is unknown.
        BenchError: a run fails.
    """
    check_known(workloads, WORKLOADS, what="workload")
    results: list[FirstCall] = []
    for workload in workloads:
        results.append(_run(workload, ranks=ranks, plan=plan, environment=environment))
        say(f"{workload}: the first call takes {results[-1].calls:.2f} steps")
    return results


def row_of(found: FirstCall) -> Result:
    """Return the figures of a workload."""
    samples = {
        "first call": (found.first_call * 1e3,),
        "step": (found.step * 1e3,),
        "in steps": (found.calls,),
        "first peak": (float(found.peaks[0]),),
        "peak of a step": (found.peak,),
        "of peaks": (found.memory,),
        "of 200 steps": (100 * found.share,),
        "seconds of each step": found.seconds,
        "peak of each step": tuple(map(float, found.peaks)),
    }
    return Result(labels={"workload": found.workload}, samples=samples)


def _run(workload: str, *, ranks: int, plan: str, environment: Mapping[str, str]) -> FirstCall:
    options = ("--ranks", str(ranks), "--plan", plan, "--seed", "0")
    script = (str(SCRIPT), workload, "--warm-up", "0", "--steps", "16")
    path = os.pathsep.join(filter(None, (str(FOLDER), environment.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory(prefix="ronde-bench-run-") as folder:
        command = (sys.executable, "-m", "ronde", "run", *options, "--run-dir", folder, *script)
        process = Process(command=command, environment={**environment, "PYTHONPATH": path})
        output, _ = run_together([process], timeout=_TIMEOUT)
    lines = [each for each in output.splitlines() if each.startswith(MARK)]
    if len(lines) != 1:
        raise BenchError(f"{workload} printed {len(lines)} lines of figures; it ends: {output[-300:]!r}")
    return made_of(FirstCall, json.loads(lines[0].removeprefix(MARK)))


def main() -> int:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_call", description=__doc__)
    parser.add_argument("--workloads", metavar="NAMES", default=",".join(USUAL), help=", ".join(WORKLOADS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--plan", default="ddp")
    add_options(parser)
    asked = parser.parse_args()
    machine = Machine.here()
    found = measure(asked.workloads.split(","), ranks=asked.ranks, plan=asked.plan, environment=os.environ)
    report = Report(
        kind="first-call",
        machine=machine,
        settings={"ranks": str(asked.ranks), "plan": asked.plan},
        quantities=QUANTITIES,
        results=tuple(map(row_of, found)),
    )
    show(report, asked)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
