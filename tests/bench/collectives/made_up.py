"""Made-up measurements of collectives."""

from __future__ import annotations

from typing import Any

from bench.samples import MACHINE
from ronde.bench.collectives.operation import Case
from ronde.bench.collectives.report import CollectivesReport, Result, Sample


def result(operation: str, nbytes: int, **microseconds: list[float]) -> Result:
    """Each contender's microseconds a call, round by round; a name's hyphens are underscores here."""
    rounds = [
        {
            name.replace("_", "-"): Sample(calls=100, seconds=each / 1e4)
            for name, each in zip(microseconds, values)
        }
        for values in zip(*microseconds.values(), strict=True)
    ]
    return Result(case=Case(operation=operation, nbytes=nbytes), rounds=tuple(rounds))


def report(*results: Result, **changed: Any) -> CollectivesReport:
    fields: dict[str, Any] = {"versions": {"gloo": "torch 2.13.0"}, "missing": {}, "ranks": 2, "threads": 1}
    return CollectivesReport(machine=MACHINE, results=results, **{**fields, **changed})


REPORT = report(
    result("all-reduce", 4000, shared_memory=[10, 20, 30], shared_buckets=[8, 8, 8], gloo=[100, 400, 150]),
    result("barrier", 0, shared_memory=[5, 5, 5], gloo=[1500, 1500, 2000]),
    missing={"mpi": "pip install 'ronde[mpi]'"},
)
