"""What was measured, and how it is kept as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from ronde.bench.machine import Machine
from ronde.bench.reading import reading
from ronde.bench.rounds import Result, Round
from ronde.bench.sample import Sample

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
        fields = dataclasses.asdict(self)
        for result, described in zip(self.results, fields["results"], strict=True):
            described["figures"] = {peer: _figures(result, peer) for peer in result.peers}
        return json.dumps(fields, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report that `to_json` wrote; its figures are made of the samples again.

        Raises:
            UsageError: for anything else, and for what an earlier version wrote.
        """
        with reading(text, *KINDS):
            fields = json.loads(text)
            fields["machine"] = Machine(**fields["machine"])
            fields["results"] = tuple(_result(described) for described in fields["results"])
            return cls(**fields)


def _figures(result: Result, peer: str) -> dict[str, Any]:
    comparison = result.against(peer)
    return {
        "ratio_of_medians": comparison.ratio_of_medians,
        **{
            name: dataclasses.asdict(getattr(comparison, name))
            for name in ("ratio", "added_microseconds", "added_per_cent", "added_wall_seconds")
        },
    }


def _result(fields: dict[str, Any]) -> Result:
    rounds = tuple(
        Round(
            samples={name: _sample(sample) for name, sample in each["samples"].items()},
            failed=each.get("failed", {}),
        )
        for each in fields["rounds"]
    )
    return Result(workload=fields["workload"], commands=fields["commands"], rounds=rounds)


def _sample(fields: dict[str, Any]) -> Sample:
    return Sample(**{**fields, "losses": tuple(fields["losses"])})
