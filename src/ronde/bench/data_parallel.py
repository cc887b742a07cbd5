"""`ronde bench dp`: a script under ronde against the same training written by hand for DDP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ronde.bench.contenders import twin, under_ronde
from ronde.bench.machine import Machine
from ronde.bench.pairs import Pair, measure
from ronde.bench.report import Report
from ronde.errors import UsageError

__all__ = ["WORKLOADS", "compare"]

WORKLOADS = ("transformer", "gpt", "resnet18-gn", "mlp")


def compare(
    workloads: Sequence[str],
    *,
    ranks: int,
    pairs: int,
    steps: int | None,
    environment: Mapping[str, str],
    progress: Callable[[str, int, Pair], None],
) -> Report:
    """Measure each workload in alternating pairs; both contenders' ranks share the cores equally.

    Args:
        steps: timed steps of every run; None for each workload's own number.

    Raises:
        UsageError: for a workload that there is not.
        BenchError: when a run fails, or the two did not train alike.
    """
    for name in workloads:
        if name not in WORKLOADS:
            raise UsageError(f"there is no workload {name!r}; choose among {', '.join(WORKLOADS)}")
    machine = Machine.here()
    threads = max(1, machine.cores // ranks)
    arguments = [] if steps is None else ["--steps", str(steps)]
    results = []
    for name in workloads:
        share = {"ranks": ranks, "threads": threads, "environment": environment}
        results.append(
            measure(
                name,
                pairs,
                partial(under_ronde, name, arguments, **share),
                partial(twin, name, arguments, **share),
                partial(progress, name),
            )
        )
    return Report(kind="dp", machine=machine, ranks=ranks, threads=threads, results=tuple(results))
