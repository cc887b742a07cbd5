"""Peak memory of a rank, by kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ronde.trace.resident import KINDS, Kind

__all__ = ["Memory", "largest", "memory_line", "show_bytes"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Peaks in bytes; docs/reference/memory.md says how each is measured.

    Attributes:
        peaks: peak of each kind by itself; they need not coincide. Kinds that could not be measured are
            missing.
        total: the peak of all memory: of the process on a CPU, of torch's allocator on a CUDA device.
        where: owner of the total.
        on_host: largest part of a kind in host memory beside a CUDA device; it is in `peaks`, and not in the
            total.
        settled: peaks of the steps behind the second. The model as the script built it is not in them.
    """

    peaks: Mapping[Kind, int]
    total: int
    where: Literal["process", "device"]
    on_host: Mapping[Kind, int] = dataclasses.field(default_factory=dict)
    settled: Mapping[Kind, int] = dataclasses.field(default_factory=dict)

    @property
    def state(self) -> int:
        """Sum of parameters, gradients and optimizer state: plans differ in it."""
        return sum(self.peaks.get(kind, 0) for kind in ("parameters", "gradients", "optimizer"))

    @property
    def known(self) -> int:
        """Sum of all kinds."""
        return sum(self.peaks.values())

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Memory:
        """Parse the fields of `dataclasses.asdict`.

        Raises:
            KeyError, TypeError: the fields are something else.
        """
        return cls(
            peaks=_by_kind(fields["peaks"]),
            total=int(fields["total"]),
            where=fields["where"],
            on_host=_by_kind(fields.get("on_host", {})),
            settled=_by_kind(fields.get("settled", {})),
        )


def _by_kind(values: Mapping[str, Any]) -> dict[Kind, int]:
    return {kind: int(values[kind]) for kind in KINDS if kind in values}


def largest(memories: Sequence[Memory]) -> int:
    """Return the index of the largest total, the first of equal ones."""
    return max(range(len(memories)), key=lambda place: (memories[place].known, -place))


def memory_line(memory: Memory, rank: int | None) -> str:
    """Format the memory of the rank with the most.

    `rank` is its number, or None in a run of one rank.
    """
    kinds = ", ".join(
        f"{kind} {show_bytes(nbytes)}{_beside(nbytes, memory.on_host.get(kind, 0))}"
        for kind in KINDS
        if (nbytes := memory.peaks.get(kind))
    )
    told = f"{kinds}; {memory.where} {show_bytes(memory.total)}"
    if rank is None:
        return f"peak memory: {told}"
    return f"peak memory on rank {rank}, which had the most: {told}"


def _beside(nbytes: int, on_host: int) -> str:
    """Format the part in host memory; less than one percent is left out."""
    if on_host < nbytes / 100:
        return ""
    return " in host memory" if on_host > nbytes * 0.99 else f" ({show_bytes(on_host)} in host memory)"


def show_bytes(nbytes: int) -> str:
    """Format bytes with three significant digits.

    >>> show_bytes(64), show_bytes(3 * 2**20 + 2**19), show_bytes(170 * 2**30)
    ('64 B', '3.50 MiB', '170 GiB')
    """
    value, unit = float(nbytes), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    digits = 0 if unit == 0 or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {_UNITS[unit]}"
