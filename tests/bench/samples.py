"""Made-up measurements."""

from __future__ import annotations

from typing import Any

from ronde.bench.machine import Machine
from ronde.bench.memory.formula import Sizes
from ronde.bench.memory.report import MemoryReport, PlanMemory
from ronde.bench.report import Report
from ronde.bench.rounds import Result, Round
from ronde.bench.sample import Sample
from ronde.trace.memory import Memory

MACHINE = Machine(cpu="Example 9000", cores=2, memory_gib=15.6, load=0.1, python="3.11.7", torch="2.13.0")


def sample(speed: float, **changed: Any) -> Sample:
    """100 samples at `speed` samples/s in 10 steps."""
    fields: dict[str, Any] = {
        "workload": "mlp",
        "batch_size": 10,
        "samples_per_second": speed,
        "steps": 10,
        "seconds": 100 / speed,
        "loss": 2.0,
        "losses": (),
        "threads": 1,
        "torch": "2.13.0",
        "device": "cpu",
        "wall_seconds": 100 / speed + 3,
    }
    return Sample(**{**fields, **changed})


def result(workload: str, **speeds: list[float]) -> Result:
    """Each contender's samples/s, round by round."""
    rounds = [
        Round(samples={name: sample(speed) for name, speed in zip(speeds, each)})
        for each in zip(*speeds.values(), strict=True)
    ]
    return Result(
        workload=workload, commands={name: f"python {name}" for name in speeds}, rounds=tuple(rounds)
    )


def report(
    *results: Result, kind: str = "dp", ranks: int = 2, threads: int | None = 1, **changed: Any
) -> Report:
    fields: dict[str, Any] = {"method": "global", "versions": {"ddp": "torch 2.13.0"}}
    return Report(
        kind=kind, machine=MACHINE, ranks=ranks, threads=threads, results=results, **{**fields, **changed}
    )


def memory_report() -> MemoryReport:
    """A thousand parameters with Adam, as the formula says; rank 1 has a tenth more under zero1."""

    def memory(optimizer: int) -> Memory:
        peaks: Any = {"parameters": 4000, "gradients": 4000, "optimizer": optimizer, "buckets": 100}
        return Memory(peaks=peaks, total=1 << 20, where="process")

    ddp = PlanMemory(plan="ddp", command="ronde run", ranks=(memory(8000), memory(8000)), loss=2.0)
    zero1 = PlanMemory(plan="zero1", command="ronde run", ranks=(memory(4000), memory(5200)), loss=2.0)
    sizes = Sizes(parameters=1000, largest_unit=300, slots=2)
    return MemoryReport(machine=MACHINE, workload="transformer", sizes=sizes, results=(ddp, zero1))
