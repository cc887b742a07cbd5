"""`ronde bench horovod`: operations of Horovod's interface beside ronde's own collectives and Gloo's."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ronde.bench.columns import columns
from ronde.bench.contenders import FOLDER
from ronde.bench.json_report import written
from ronde.bench.machine import Machine
from ronde.bench.process_set import Process, run_together
from ronde.bench.servers import Figures
from ronde.bench.spread import Spread
from ronde.errors import BenchError

__all__ = ["KIND", "HorovodReport", "measure", "table"]

KIND = "horovod"
_TIMEOUT = 900.0
_BEHIND = "[0]<stdout>:"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HorovodReport:
    """One invocation.

    Attributes:
        results: in each the first way is Horovod's.
    """

    machine: Machine
    ranks: int
    rounds: int
    results: tuple[Figures, ...]

    def to_json(self) -> str:
        return written(KIND, self)


def measure(
    *, ranks: int, rounds: int, environment: Mapping[str, str], floats: int | None = None
) -> HorovodReport:
    """Time all operations on ranks of one thread each, all ways in turn in the same processes.

    Args:
        floats: of the large tensor, where it is not to be 102 MB.

    Raises:
        BenchError: a rank failed, or a mean was wrong.
    """
    machine = Machine.here()
    script = (sys.executable, str(FOLDER / "horovod_operations.py"), "--rounds", str(rounds))
    size = () if floats is None else ("--floats", str(floats))
    command = (sys.executable, "-m", "ronde", "horovodrun", "-np", str(ranks), *script, *size)
    with tempfile.TemporaryDirectory(prefix="ronde-bench-") as folder:
        own = {"OMP_NUM_THREADS": "1", "RONDE_BENCH_STORE": str(Path(folder) / "store")}
        said, _ = run_together(
            [Process(command=command, environment={**environment, **own})], timeout=_TIMEOUT
        )
    lines = [line.removeprefix(_BEHIND) for line in said.splitlines() if line.startswith(_BEHIND + "{")]
    if not lines:
        raise BenchError(f"the ranks have ended without figures; they said: {said[-300:]} [R852]")
    results = tuple(
        Figures(what=what, unit="ms", ways={way: tuple(each) for way, each in ways.items()})
        for what, ways in json.loads(lines[-1]).items()
    )
    return HorovodReport(machine=machine, ranks=ranks, rounds=rounds, results=results)


def table(report: HorovodReport) -> str:
    """A row for each way: milliseconds, and its share of what Horovod's interface takes, within a round."""
    machine = report.machine
    heading = f"{report.ranks} ranks on {machine.cpu}, load {machine.load} before, {report.rounds} rounds"
    rows = [("what", "way", "median ms", "quartiles", "times horovod's")]
    for each in report.results:
        first = next(iter(each.ways.values()))
        for way, figures in each.ways.items():
            found = Spread.of(figures)
            ratio = Spread.of([mine / own for mine, own in zip(figures, first, strict=True)]).median
            rows.append(
                (
                    each.what,
                    way,
                    f"{found.median:.3f}",
                    f"{found.low:.3f} to {found.high:.3f}",
                    f"{ratio:.2f}",
                )
            )
    return f"{heading}\n\n{columns(rows)}"
