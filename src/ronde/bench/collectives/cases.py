"""Cases of `ronde bench collectives`, operations at some sizes, and their contenders."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from ronde.bench.choice import check_known
from ronde.errors import UsageError
from ronde.plan.communication import Algorithm

__all__ = [
    "CONTENDERS", "OPERATIONS", "OURS", "PEERS", "Case", "CollectiveContender", "cases", "choose",
    "parse_size",
    "show_size",
]  # fmt: skip

OPERATIONS = ("all-reduce", "reduce-scatter", "all-gather", "broadcast", "all-to-all", "barrier")
_WITHOUT_SIZE = ("barrier",)
_ITEM = 4
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_BY_NAME = {name.lower(): factor for name, factor in _UNITS.items()}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """An operation at one size.

    Attributes:
        nbytes: bytes of the larger of a rank's two tensors, as the benchmarks of MPI and NCCL count: the
            tensor that is reduced, broadcast or scattered, or the gathered one. Zero for a barrier.
    """

    operation: str
    nbytes: int

    @property
    def title(self) -> str:
        """Name the operation with its size."""
        return f"{self.operation} of {show_size(self.nbytes)}" if self.nbytes else self.operation

    def elements(self, ranks: int) -> int:
        """Return the number of floats, rounded up to a multiple of the ranks."""
        return -(-self.nbytes // (_ITEM * ranks)) * ranks


def cases(operations: Sequence[str], sizes: Sequence[int]) -> list[Case]:
    """Return every operation at every size, once each."""
    return [
        Case(operation=operation, nbytes=nbytes)
        for operation in dict.fromkeys(operations)
        for nbytes in ([0] if operation in _WITHOUT_SIZE else dict.fromkeys(sizes))
    ]


def parse_size(text: str) -> int:
    """Return the bytes of a number with a unit.

    >>> parse_size("4KB"), parse_size("1.5 MiB")
    (4000, 1572864)

    Raises:
        UsageError: the text is something else than a number above zero and a unit.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower())
    factor = _BY_NAME.get(found[2]) if found else None
    nbytes = round(float(found[1]) * factor) if found and factor else 0
    if nbytes < 1:
        raise UsageError(
            f"{text!r} is not a size; write a number and a unit among {', '.join(_UNITS)}: 4KB [R850]"
        )
    return nbytes


def show_size(nbytes: int) -> str:
    """Return bytes in the largest unit with the fewest digits.

    >>> show_size(4000), show_size(4096), show_size(1500)
    ('4 KB', '4 KiB', '1.5 KB')
    """
    shown = [f"{nbytes / factor:.10g} {name}" for name, factor in _UNITS.items() if nbytes >= factor]
    return min(reversed(shown), key=len)


_SUMS = ("all-reduce",)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveContender:
    """A library or an algorithm that does collectives.

    Attributes:
        name: the word of the command line, which `backends.JOIN` has too.
        title: the name in a table.
        operations: the operations that are measured.
        algorithm: the plan's value for ronde's all-reduce.
        by_mpi: whether MPI's launcher starts its ranks.
    """

    name: str
    title: str
    operations: tuple[str, ...] = OPERATIONS
    algorithm: Algorithm = "auto"
    by_mpi: bool = False


OURS = {
    each.name: each
    for each in (
        CollectiveContender(name="shared-memory", title="shared memory"),
        # Includes the division for the mean, which other contenders leave to the caller.
        CollectiveContender(name="shared-buckets", title="shared buckets", operations=_SUMS),
        CollectiveContender(name="ring", title="ring", operations=_SUMS, algorithm="ring"),
        CollectiveContender(name="tree", title="two trees", operations=_SUMS, algorithm="tree"),
    )
}
PEERS = {
    each.name: each
    for each in (
        CollectiveContender(name="gloo", title="Gloo"),
        CollectiveContender(name="mpi", title="MPI", by_mpi=True),
    )
}
CONTENDERS = {**OURS, **PEERS}


def choose(
    names: Sequence[str], among: dict[str, CollectiveContender], *, what: str
) -> list[CollectiveContender]:
    """Return the contenders of these names, once each.

    Raises:
        UsageError: a name is unknown.
    """
    check_known(names, among, what=what)
    return [among[name] for name in dict.fromkeys(names)]
