"""Operations of Horovod's interface beside ronde's collectives and Gloo's."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ronde.bench.machine import Machine
from ronde.bench.process_set import Process, run_together
from ronde.bench.report import Quantity, Report, Result
from ronde.bench.rounds import ratios
from ronde.errors import BenchError

__all__ = ["QUANTITIES", "measure", "rows_of"]

QUANTITIES = {
    "time": Quantity(unit="ms", spread=True, drawn=True),
    "times horovod's": Quantity(unit="x"),
}
_TIMEOUT = 900.0
_PREFIX = "[0]<stdout>:"


def measure(*, ranks: int, rounds: int, environment: Mapping[str, str], floats: int | None = None) -> Report:
    """Time all operations on ranks of one thread, in turn in the same processes.

    Args:
        floats: the size of the large tensor; None for 102 MB.

    Raises:
        BenchError: a rank failed, or a mean was wrong.
    """
    machine = Machine.here()
    script = (sys.executable, str(Path(__file__).with_name("operations.py")), "--rounds", str(rounds))
    size = () if floats is None else ("--floats", str(floats))
    command = (sys.executable, "-m", "ronde", "horovodrun", "-np", str(ranks), *script, *size)
    with tempfile.TemporaryDirectory(prefix="ronde-bench-") as folder:
        own = {"OMP_NUM_THREADS": "1", "RONDE_BENCH_STORE": str(Path(folder) / "store")}
        said, _ = run_together(
            [Process(command=command, environment={**environment, **own})], timeout=_TIMEOUT
        )
    lines = [line.removeprefix(_PREFIX) for line in said.splitlines() if line.startswith(_PREFIX + "{")]
    if not lines:
        raise BenchError(f"the ranks have ended without figures; they said: {said[-300:]}")
    measured: dict[str, dict[str, list[float]]] = json.loads(lines[-1])
    return Report(
        kind="horovod",
        machine=machine,
        settings={"ranks": str(ranks), "threads": "1", "rounds": str(rounds)},
        quantities=QUANTITIES,
        results=tuple(row for subject, ways in measured.items() for row in rows_of(subject, ways)),
    )


def rows_of(subject: str, ways: Mapping[str, Sequence[float]]) -> list[Result]:
    """Return a row for each way; the first is Horovod's."""
    first = next(iter(ways.values()))
    return [
        Result(
            labels={"operation": subject, "way": way},
            samples={"time": tuple(figures), "times horovod's": ratios(figures, first)},
        )
        for way, figures in ways.items()
    ]
