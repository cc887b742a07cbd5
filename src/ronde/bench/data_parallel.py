"""`ronde bench dp`: a script under ronde against the same training written for other libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ronde.bench.choice import check_known
from ronde.bench.contenders import under_ronde, with_peer
from ronde.bench.machine import Machine
from ronde.bench.method import Method
from ronde.bench.peers import Peer
from ronde.bench.report import Report
from ronde.bench.rounds import ROUNDING, Round, measure

__all__ = ["NOTES", "USUAL", "WORKLOADS", "compare"]

USUAL = ("transformer", "gpt", "resnet18-gn", "resnet18-bn", "bert", "mlp")
WORKLOADS = (*USUAL, "bert-no-dropout", "mlp-512", "mlp-20k", "clicks-1m", "clicks-4m")

# Where the peers do not compute what one device would, and so not what ronde does.
NOTES = {
    "resnet18-bn": "the peers normalize with the statistics of each rank's own rows, as users write it; "
    "ronde with those of the global batch, as on one device",
    "bert": "dropout is the single-device draw under ronde (rng=global), each rank's own with the peers",
}
# There the last losses only lie near each other.
_OTHER_COMPUTATION = 0.3


def compare(  # noqa: PLR0913 - each is an option of `ronde bench dp`
    workloads: Sequence[str],
    *,
    against: Sequence[Peer],
    method: Method,
    ranks: int,
    rounds: int | None,
    steps: int | None,
    environment: Mapping[str, str],
    plan: str = "ddp",
    progress: Callable[[str, int, int, Round], None],
) -> Report:
    """Measure each workload in rounds; all contenders' ranks share the cores equally.

    Args:
        rounds: runs of each contender; None for the method's number.
        plan: how ronde cuts the work.
        steps: timed steps of every run; None for the method's or each workload's own number.
        progress: hears the workload, a round's number, how many there are, and the round.

    Raises:
        UsageError: for a workload that there is not, or what the method does not allow.
        BenchError: when a run fails, or two did not train alike.
    """
    check_known(workloads, WORKLOADS, what="workload")
    arguments = method.arguments(ranks=ranks, steps=steps)
    count = rounds or method.rounds
    machine = Machine.here()
    threads = max(1, machine.cores // ranks)
    results = []
    for name in workloads:
        share = {"ranks": ranks, "threads": threads, "environment": environment}
        contenders = [
            under_ronde(name, arguments, plan=plan, **share),
            *(with_peer(peer, name, arguments, **share) for peer in against),
        ]
        results.append(
            measure(
                name,
                contenders,
                rounds=count,
                tolerance=_OTHER_COMPUTATION if name in NOTES else ROUNDING,
                progress=partial(progress, name, count),
            )
        )
    return Report(
        kind="dp",
        method=method.name,
        machine=machine,
        versions={peer.name: peer.version for peer in against},
        ranks=ranks,
        threads=threads,
        results=tuple(results),
    )
