"""What was measured of collectives, and how it is kept as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ronde.bench.collectives.contender import OURS, PEERS
from ronde.bench.collectives.operation import Case
from ronde.bench.json_report import written
from ronde.bench.machine import Machine
from ronde.bench.spread import Spread

__all__ = ["KIND", "CollectivesReport", "Comparison", "Result", "Sample"]

KIND = "collectives"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """So many calls of one contender, one behind the other.

    Attributes:
        seconds: of the rank that took longest.
    """

    calls: int
    seconds: float

    @property
    def microseconds(self) -> float:
        """Of one call."""
        return self.seconds / self.calls * 1e6


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One of ours and a peer; the samples of a round are a pair."""

    ours: tuple[Sample, ...]
    peer: tuple[Sample, ...]

    @property
    def ratio(self) -> Spread:
        """The peer's time over ours, pair by pair: above 1 is faster than the peer."""
        pairs = zip(self.ours, self.peer, strict=True)
        return Spread.of(peer.microseconds / ours.microseconds for ours, peer in pairs)

    @property
    def ratio_of_medians(self) -> float:
        return _time(self.peer).median / _time(self.ours).median


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """All rounds of one case.

    Attributes:
        rounds: in each the contenders' samples by name, in the order in which they ran.
    """

    case: Case
    rounds: tuple[Mapping[str, Sample], ...]

    @property
    def ours(self) -> tuple[str, ...]:
        return tuple(name for name in OURS if name in self.rounds[0])

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(name for name in PEERS if name in self.rounds[0])

    def microseconds(self, name: str) -> Spread:
        """Of one call of a contender."""
        return _time(tuple(each[name] for each in self.rounds))

    def against(self, ours: str, peer: str) -> Comparison:
        return Comparison(
            ours=tuple(each[ours] for each in self.rounds), peer=tuple(each[peer] for each in self.rounds)
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CollectivesReport:
    """One invocation of `ronde bench collectives`.

    Attributes:
        versions: of the contenders' libraries, by name.
        missing: peers that are not installed, and how to install them.
        ranks, threads: ranks of every contender, and threads of each.
    """

    machine: Machine
    versions: Mapping[str, str]
    missing: Mapping[str, str]
    ranks: int
    threads: int
    results: tuple[Result, ...]

    def to_json(self) -> str:
        """Every sample, and the figures made of them."""
        return written(KIND, self, _figures)


def _time(samples: tuple[Sample, ...]) -> Spread:
    return Spread.of(sample.microseconds for sample in samples)


def _figures(result: Result) -> dict[str, Any]:
    microseconds = {name: dataclasses.asdict(result.microseconds(name)) for name in result.rounds[0]}
    ratios: dict[str, dict[str, Any]] = {}
    for ours in result.ours:
        compared = {peer: result.against(ours, peer) for peer in result.peers}
        ratios[ours] = {
            peer: {"ratio": dataclasses.asdict(each.ratio), "ratio_of_medians": each.ratio_of_medians}
            for peer, each in compared.items()
        }
    return {"microseconds": microseconds, "against": ratios}
