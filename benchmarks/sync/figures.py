"""Figures of ways of synchronising, from the samples of their runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from benchmarks.sync.contender import ALONE, BASE
from ronde.bench.report import Quantity, Result
from ronde.bench.rounds import ratios
from ronde.bench.spread import Spread

__all__ = ["QUANTITIES", "SLOW_RANK", "Sample", "Way", "hidden", "notes_of", "rows_of"]

SLOW_RANK = "one of 4 ranks slow"
"""A place of four ranks, of which one takes twice as long for its own work."""
QUANTITIES = {
    "speed": Quantity(unit="steps/s", drawn=True),
    "times DDP by hand": Quantity(unit="x"),
    "MB a step": Quantity(),
    "time to accuracy": Quantity(unit="s", drawn=True),
    "accuracy": Quantity(unit="%"),
    "least": Quantity(unit="%"),
    "most": Quantity(unit="%"),
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One run.

    Attributes:
        steps_per_second: the speed of rank 0 after the warm-up.
        megabytes: bytes that rank 0's host sends in a step; shared memory does not count.
    """

    steps_per_second: float
    megabytes: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """A contender in a place.

    Attributes:
        place: the hosts of the ranks: "100mbit", "one host", "one of 4 ranks slow", ...
        samples: one for each round.
        steps_to: steps to the accuracy, of the seeds the most; None where not asked for, or not reached.
        accuracies: the accuracies at the end of these runs, by seed.
    """

    name: str
    place: str
    samples: tuple[Sample, ...]
    steps_to: int | None = None
    accuracies: tuple[float, ...] = ()

    @property
    def speeds(self) -> tuple[float, ...]:
        """Steps a second, by round."""
        return tuple(each.steps_per_second for each in self.samples)

    @property
    def megabytes(self) -> tuple[float, ...]:
        """Megabytes of a step, by round."""
        return tuple(each.megabytes for each in self.samples)


def rows_of(ways: Sequence[Way]) -> list[Result]:
    """Return a row for each way; ratios are to DDP in the same place."""
    bases = {way.place: way for way in ways if way.name == BASE}
    found = []
    for way in ways:
        samples = {"speed": way.speeds, "MB a step": way.megabytes}
        if way.place in bases:
            rounds = min(len(way.samples), len(bases[way.place].samples))
            samples["times DDP by hand"] = ratios(way.speeds[:rounds], bases[way.place].speeds[:rounds])
        if way.steps_to is not None:
            samples["steps to accuracy"] = (float(way.steps_to),)
            samples["time to accuracy"] = (way.steps_to / Spread.of(way.speeds).median,)
        if way.accuracies:
            per_cent = tuple(100 * each for each in way.accuracies)
            samples["accuracy"] = (sum(per_cent) / len(per_cent),)
            if len(per_cent) > 1:
                samples |= {"least": (min(per_cent),), "most": (max(per_cent),), "by seed": per_cent}
        found.append(Result(labels={"between": way.place, "way": way.name}, samples=samples))
    return found


def notes_of(ways: Sequence[Way]) -> tuple[str, ...]:
    """Return the model, and the hidden share of each place."""
    slow = any(each.place == SLOW_RANK for each in ways)
    found = ["MLP of 5.8 M parameters" + (", of 0.67 M where a rank is slow" if slow else "")]
    for place in dict.fromkeys(each.place for each in ways):
        there = {each.name: each for each in ways if each.place == place}
        if {"async-average", ALONE, BASE} <= there.keys():
            share = hidden(there["async-average"], there[ALONE], there[BASE])
            found.append(f"{place}: async-average hides {share:.0%} of its communication")
    return tuple(found)


def hidden(own: Way, alone: Way, base: Way) -> float:
    """Return the share of communication that does not lengthen a step.

    By bytes: the time of DDP for a megabyte, beyond the step without exchange, would be the time here, if
    nothing were hidden.
    """
    step, without, exposed = (
        Spread.of([1 / each for each in way.speeds]).median for way in (own, alone, base)
    )
    sent, of_base = (Spread.of(way.megabytes).median for way in (own, base))
    all_of_it = (exposed - without) * sent / max(of_base, 1e-9)
    return max(0.0, min(1.0, 1 - (step - without) / max(all_of_it, 1e-9)))
