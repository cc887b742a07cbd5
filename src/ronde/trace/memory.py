"""What a rank's memory held at its peak, by kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ronde.plan.resident import KINDS, Kind

__all__ = ["Memory", "largest", "memory_line", "show_bytes"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Peaks in bytes; docs/memory.md says how each is measured.

    Attributes:
        peaks: of each kind by itself; they need not come together. What could not be measured is missing.
        total: the peak of all memory: of the process on a CPU, of torch's allocator on a CUDA device.
        where: whose total that is.
    """

    peaks: Mapping[Kind, int]
    total: int
    where: Literal["process", "device"]

    @property
    def state(self) -> int:
        """Parameters, gradients and optimizer state: what plans differ in."""
        return sum(self.peaks.get(kind, 0) for kind in ("parameters", "gradients", "optimizer"))

    @property
    def known(self) -> int:
        """All kinds together."""
        return sum(self.peaks.values())

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Memory:
        """The memory whose `dataclasses.asdict` this is.

        Raises:
            KeyError, TypeError: for anything else.
        """
        peaks: dict[Kind, int] = {
            kind: int(fields["peaks"][kind]) for kind in KINDS if kind in fields["peaks"]
        }
        return cls(peaks=peaks, total=int(fields["total"]), where=fields["where"])


def largest(memories: Sequence[Memory]) -> int:
    """The place of the one with the most; the first among equals."""
    return max(range(len(memories)), key=lambda place: (memories[place].known, -place))


def memory_line(memory: Memory, rank: int | None) -> str:
    """What the user is told of the rank with the most; None where there is only one."""
    kinds = ", ".join(f"{kind} {show_bytes(nbytes)}" for kind in KINDS if (nbytes := memory.peaks.get(kind)))
    told = f"{kinds}; {memory.where} {show_bytes(memory.total)}"
    if rank is None:
        return f"peak memory: {told}"
    return f"peak memory on rank {rank}, which had the most: {told}"


def show_bytes(nbytes: int) -> str:
    """Three digits that count.

    >>> show_bytes(64), show_bytes(3 * 2**20 + 2**19), show_bytes(170 * 2**30)
    ('64 B', '3.50 MiB', '170 GiB')
    """
    value, unit = float(nbytes), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    digits = 0 if unit == 0 or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {_UNITS[unit]}"
