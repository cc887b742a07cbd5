"""Measuring two contenders in pairs, so that what disturbs the machine meets both alike.

    pair      1    2    3    4   ...
    first     A    B    A    B
    second    B    A    B    A

Which one goes first changes with every pair: a machine that warms up, or a cache that was filled, favours
neither. Runs never overlap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from ronde.bench.sample import Sample
from ronde.bench.spread import Spread
from ronde.errors import BenchError

__all__ = ["Pair", "Result", "alternate", "check_same_training", "measure"]

# Both train alike up to the rounding of fp32 over some dozens of steps; a different batch, or gradients that
# were not averaged, lie far beyond.
_LOSS_TOLERANCE = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two runs, one behind the other; `ours_first` says in which order."""

    ours: Sample
    peer: Sample
    ours_first: bool

    @property
    def ratio(self) -> float:
        """Our throughput over the peer's: above 1 is faster than the peer."""
        return self.ours.samples_per_second / self.peer.samples_per_second


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """All pairs of one workload."""

    workload: str
    pairs: tuple[Pair, ...]

    @property
    def ratio(self) -> Spread:
        return Spread.of(pair.ratio for pair in self.pairs)

    @property
    def ours(self) -> Spread:
        """Our samples/s."""
        return Spread.of(pair.ours.samples_per_second for pair in self.pairs)

    @property
    def peer(self) -> Spread:
        """The peer's samples/s."""
        return Spread.of(pair.peer.samples_per_second for pair in self.pairs)

    @property
    def added_microseconds(self) -> Spread:
        """What a step takes us longer than the peer."""
        return Spread.of(pair.ours.step_microseconds - pair.peer.step_microseconds for pair in self.pairs)

    @property
    def added_wall_seconds(self) -> Spread:
        """What the whole run takes us longer than the peer."""
        return Spread.of(pair.ours.wall_seconds - pair.peer.wall_seconds for pair in self.pairs)


def alternate(pairs: int) -> Sequence[bool]:
    """Whether ours goes first, for each pair.

    >>> alternate(3)
    [True, False, True]
    """
    return [index % 2 == 0 for index in range(pairs)]


def measure(
    workload: str,
    pairs: int,
    ours: Callable[[], Sample],
    peer: Callable[[], Sample],
    progress: Callable[[int, Pair], None],
) -> Result:
    """Run both contenders `pairs` times; `progress` hears of each pair with its number, from 1."""
    measured: list[Pair] = []
    for number, ours_first in enumerate(alternate(pairs), 1):
        if ours_first:
            mine, other = ours(), peer()
        else:
            other, mine = peer(), ours()
        pair = Pair(ours=mine, peer=other, ours_first=ours_first)
        check_same_training(pair)
        measured.append(pair)
        progress(number, pair)
    return Result(workload=workload, pairs=tuple(measured))


def check_same_training(pair: Pair) -> None:
    """Refuse to compare runs that did not do the same work.

    Raises:
        BenchError: when workload, steps, threads or the last loss differ.
    """
    ours, peer = pair.ours, pair.peer
    for name in ("workload", "steps", "threads", "torch"):
        if getattr(ours, name) != getattr(peer, name):
            raise BenchError(
                f"the two runs are not comparable: {name} is {getattr(ours, name)} in ronde's and "
                f"{getattr(peer, name)} in the other; both must be given the same"
            )
    if not abs(ours.loss - peer.loss) <= _LOSS_TOLERANCE * max(abs(ours.loss), abs(peer.loss), 0.1):
        raise BenchError(
            f"{ours.workload} did not train alike: the last loss is {ours.loss:.6g} under ronde and "
            f"{peer.loss:.6g} in its twin; run `ronde verify` on the script before measuring it"
        )
