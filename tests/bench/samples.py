"""Made-up measurements."""

from __future__ import annotations

from typing import Any

from ronde.bench.machine import Machine
from ronde.bench.memory.formula import Sizes
from ronde.bench.memory.measure import QUANTITIES, notes_of, rows_of
from ronde.bench.report import Report, Result
from ronde.bench.sample import Sample
from ronde.bench.steps import DP, OVERHEAD, compared
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


def result(workload: str, **speeds: list[float]) -> list[Result]:
    """Rows of a workload, from each contender's samples/s, round by round."""
    return compared(workload, {name: [sample(each) for each in values] for name, values in speeds.items()})


def report(*results: list[Result], kind: str = "dp", **changed: Any) -> Report:
    fields: dict[str, Any] = {"settings": {"ranks": "2", "ddp": "torch 2.13.0"}}
    fields["quantities"] = DP if kind == "dp" else OVERHEAD
    rows = tuple(row for each in results for row in each)
    return Report(kind=kind, machine=MACHINE, results=rows, **{**fields, **changed})


SIZES = Sizes(parameters=1000, largest_unit=300, slots=2)


def memory(optimizer: int, **more: int) -> Memory:
    """Peaks of a rank with a thousand parameters."""
    peaks: Any = {"parameters": 4000, "gradients": 4000, "optimizer": optimizer, "buckets": 100, **more}
    return Memory(peaks=peaks, total=1 << 20, where="process")


def memory_report() -> Report:
    """A thousand parameters with Adam, as the formula says; rank 1 has a tenth more under zero1."""
    rows = rows_of("ddp", [memory(8000), memory(8000)], SIZES, None)
    rows += rows_of("zero1", [memory(4000), memory(5200)], SIZES, None)
    return Report(
        kind="memory",
        machine=MACHINE,
        settings={"workload": "transformer"},
        quantities=QUANTITIES,
        results=tuple(rows),
        notes=notes_of(["ddp", "zero1"], SIZES, None, "process"),
    )
