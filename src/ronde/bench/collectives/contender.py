"""Who is measured: a table with a line for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ronde.bench.choice import check_known
from ronde.bench.collectives.operation import OPERATIONS
from ronde.plan.communication import Algorithm

__all__ = ["CONTENDERS", "OURS", "PEERS", "Contender", "choose"]

_WAYS = "ronde.bench.collectives.ways"
_SUMS = ("all-reduce",)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One way to do collectives.

    Attributes:
        name: as the command line takes it.
        title: as a table names it.
        module: of `ways`; its `join` makes the rank's side.
        operations: those that it can do.
        algorithm: of ronde's all-reduce, as the plan has it.
        by_mpi: its ranks are started by MPI's launcher.
    """

    name: str
    title: str
    module: str
    operations: tuple[str, ...] = OPERATIONS
    algorithm: Algorithm = "auto"
    by_mpi: bool = False


OURS = {
    each.name: each
    for each in (
        Contender(name="shared-memory", title="shared memory", module=f"{_WAYS}.shared_memory"),
        # Its mean: the division, which the others leave to the caller, is part of the time.
        Contender(
            name="shared-buckets",
            title="shared buckets",
            module=f"{_WAYS}.shared_buckets",
            operations=_SUMS,
        ),
        Contender(name="ring", title="ring", module=f"{_WAYS}.sums", operations=_SUMS, algorithm="ring"),
        Contender(name="tree", title="two trees", module=f"{_WAYS}.sums", operations=_SUMS, algorithm="tree"),
    )
}
PEERS = {
    each.name: each
    for each in (
        Contender(name="gloo", title="Gloo", module=f"{_WAYS}.gloo"),
        Contender(name="mpi", title="MPI", module=f"{_WAYS}.mpi", by_mpi=True),
    )
}
CONTENDERS = {**OURS, **PEERS}


def choose(names: Sequence[str], among: dict[str, Contender], *, what: str) -> list[Contender]:
    """Those of these names, once each.

    Raises:
        UsageError: for one that there is not.
    """
    check_known(names, among, what=what)
    return [among[name] for name in dict.fromkeys(names)]
