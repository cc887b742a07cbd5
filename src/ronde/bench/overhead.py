"""`ronde bench overhead`: one rank under ronde against plain python, per step and at the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ronde.bench.contenders import plain, under_ronde
from ronde.bench.machine import Machine
from ronde.bench.pairs import Pair, measure
from ronde.bench.report import Report
from ronde.errors import UsageError

__all__ = ["WORKLOADS", "compare"]

WORKLOADS = ("tiny", "mlp", "start-up")


def compare(
    workloads: Sequence[str],
    *,
    pairs: int,
    steps: int | None,
    environment: Mapping[str, str],
    progress: Callable[[str, int, Pair], None],
) -> Report:
    """Measure each workload in alternating pairs; threads are what torch chooses in both.

    Args:
        steps: timed steps of every run; None for each workload's own number. Start-up has one.

    Raises:
        UsageError: for a workload that there is not.
        BenchError: when a run fails, or the two did not train alike.
    """
    for name in workloads:
        if name not in WORKLOADS:
            raise UsageError(f"there is no workload {name!r}; choose among {', '.join(WORKLOADS)}")
    machine = Machine.here()
    results = []
    for name in workloads:
        arguments = [] if steps is None or name == "start-up" else ["--steps", str(steps)]
        results.append(
            measure(
                name,
                pairs,
                partial(under_ronde, name, arguments, ranks=1, threads=None, environment=environment),
                partial(plain, name, arguments, environment=environment),
                partial(progress, name),
            )
        )
    return Report(kind="overhead", machine=machine, ranks=1, threads=None, results=tuple(results))
