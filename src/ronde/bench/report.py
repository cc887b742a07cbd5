"""What was measured, and how it is kept as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ronde.bench.json_report import written
from ronde.bench.machine import Machine
from ronde.bench.rounds import Result

__all__ = ["Report"]


KINDS = ("dp", "overhead")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """One invocation of `ronde bench`.

    Attributes:
        kind: `dp` or `overhead`.
        method: the name of the rule by which it was measured.
        versions: of the peers' libraries, by the peer's name.
        ranks, threads: ranks, and threads of each (None: what torch chose).
    """

    kind: str
    method: str
    machine: Machine
    versions: Mapping[str, str]
    ranks: int
    threads: int | None
    results: tuple[Result, ...]

    def to_json(self) -> str:
        """Every sample, and the figures made of them."""
        return written(
            self.kind, self, lambda result: {peer: _figures(result, peer) for peer in result.peers}
        )


def _figures(result: Result, peer: str) -> dict[str, Any]:
    comparison = result.against(peer)
    return {
        "ratio_of_medians": comparison.ratio_of_medians,
        **{
            name: dataclasses.asdict(getattr(comparison, name))
            for name in ("ratio", "added_microseconds", "added_per_cent", "added_wall_seconds")
        },
    }
