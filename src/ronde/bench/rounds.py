"""Measuring contenders in rounds, so that what disturbs the machine meets all alike.

    round     1    2    3    4   ...
    first     A    B    C    A
    second    B    C    A    B
    third     C    A    B    C

Who goes first changes with every round: a machine that warms up, or a cache that was filled, favours none.
Runs never overlap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from ronde.bench.contenders import Contender
from ronde.bench.sample import Sample
from ronde.bench.spread import Spread
from ronde.errors import BenchError

__all__ = ["OURS", "Comparison", "Result", "Round", "check_same_training", "measure", "orders"]

OURS = "ronde"

# Runs that train alike differ by the rounding of fp32 over some dozens of steps; with a different batch, or
# gradients that were not averaged, they lie far beyond.
ROUNDING = 0.05

# How often a peer may fail in a round, and run once more.
_FAILURES = 2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One run of each contender, one behind the other; by name, in the order in which they ran.

    Attributes:
        failed: how a peer failed, by its name, that then ran once more.
    """

    samples: Mapping[str, Sample]
    failed: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Our runs and those of one peer; the two of a round are a pair."""

    ours: tuple[Sample, ...]
    peer: tuple[Sample, ...]

    @property
    def ratio(self) -> Spread:
        """Our throughput over the peer's, pair by pair: above 1 is faster than the peer."""
        return Spread.of(ours.samples_per_second / peer.samples_per_second for ours, peer in self._pairs())

    @property
    def ratio_of_medians(self) -> float:
        return self.our_speed.median / self.peer_speed.median

    @property
    def our_speed(self) -> Spread:
        """Samples/s."""
        return Spread.of(sample.samples_per_second for sample in self.ours)

    @property
    def peer_speed(self) -> Spread:
        """Samples/s."""
        return Spread.of(sample.samples_per_second for sample in self.peer)

    @property
    def added_microseconds(self) -> Spread:
        """What a step takes us longer than the peer."""
        return Spread.of(ours.step_microseconds - peer.step_microseconds for ours, peer in self._pairs())

    @property
    def added_per_cent(self) -> Spread:
        """What a step takes us longer than the peer, in per cent of the peer's."""
        return Spread.of(
            (ours.step_microseconds / peer.step_microseconds - 1) * 100 for ours, peer in self._pairs()
        )

    @property
    def added_wall_seconds(self) -> Spread:
        """What the whole run takes us longer than the peer."""
        return Spread.of(ours.wall_seconds - peer.wall_seconds for ours, peer in self._pairs())

    def _pairs(self) -> list[tuple[Sample, Sample]]:
        return list(zip(self.ours, self.peer, strict=True))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """All rounds of one workload.

    Attributes:
        commands: of each contender, as it was run (of one rank, where it was run once a rank).
    """

    workload: str
    commands: Mapping[str, str]
    rounds: tuple[Round, ...]

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(name for name in self.commands if name != OURS)

    def against(self, peer: str) -> Comparison:
        return Comparison(
            ours=tuple(each.samples[OURS] for each in self.rounds),
            peer=tuple(each.samples[peer] for each in self.rounds),
        )


def orders(names: Sequence[str], rounds: int) -> list[tuple[str, ...]]:
    """Who runs behind whom in each round.

    >>> orders(["ronde", "ddp"], 3)
    [('ronde', 'ddp'), ('ddp', 'ronde'), ('ronde', 'ddp')]
    """
    shifts = [index % len(names) for index in range(rounds)]
    return [(*names[shift:], *names[:shift]) for shift in shifts]


def measure(
    workload: str,
    contenders: Sequence[Contender],
    *,
    rounds: int,
    tolerance: float = ROUNDING,
    progress: Callable[[int, Round], None],
) -> Result:
    """Run all contenders `rounds` times; `progress` hears of each round with its number, from 1.

    Args:
        tolerance: how far the last losses may lie apart, as a part of the larger.
    """
    by_name = {contender.name: contender for contender in contenders}
    measured: list[Round] = []
    for number, order in enumerate(orders(list(by_name), rounds), 1):
        failed: dict[str, str] = {}
        samples = {name: _run(by_name[name], failed) for name in order}
        for name, sample in samples.items():
            if name != OURS:
                check_same_training(samples[OURS], sample, peer=name, tolerance=tolerance)
        measured.append(Round(samples=samples, failed=failed))
        progress(number, measured[-1])
    commands = {contender.name: contender.command for contender in contenders}
    return Result(workload=workload, commands=commands, rounds=tuple(measured))


def _run(contender: Contender, failed: dict[str, str]) -> Sample:
    """One run. A peer's may fail: torch now and then aborts at its exit, which is no figure of ours."""
    for _ in range(0 if contender.name == OURS else _FAILURES):
        try:
            return contender.run()
        except BenchError as error:
            failed[contender.name] = str(error)
    return contender.run()


def check_same_training(ours: Sample, other: Sample, *, peer: str, tolerance: float = ROUNDING) -> None:
    """Refuse to compare runs that did not do the same work.

    Raises:
        BenchError: when workload, batch, steps, threads or the last loss differ.
    """
    for name in ("workload", "batch_size", "steps", "threads", "torch", "device"):
        if getattr(ours, name) != getattr(other, name):
            raise BenchError(
                f"the runs are not comparable: {name} is {getattr(ours, name)} in ronde's and "
                f"{getattr(other, name)} in {peer}'s; all must be given the same [R853]"
            )
    if not abs(ours.loss - other.loss) <= tolerance * max(abs(ours.loss), abs(other.loss), 0.1):
        raise BenchError(
            f"{ours.workload} did not train alike: the last loss is {ours.loss:.6g} under ronde and "
            f"{other.loss:.6g} with {peer}; run `ronde verify` on the script before measuring it [R854]"
        )
