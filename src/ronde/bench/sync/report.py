"""What `ronde bench sync` has measured."""

from __future__ import annotations

import dataclasses

from ronde.bench.columns import columns
from ronde.bench.json_report import written
from ronde.bench.machine import Machine
from ronde.bench.spread import Spread
from ronde.bench.sync.contender import BASE

__all__ = ["KIND", "SLOW_RANK", "Sample", "SyncReport", "Way", "hidden", "table"]

KIND = "sync"
# A place: four ranks, of which one takes twice as long for its own work.
SLOW_RANK = "one of 4 ranks slow"
_ALONE = "no exchange"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One run.

    Attributes:
        steps_per_second: of rank 0, behind the warm-up.
        megabytes: that rank 0's host has sent in a step; shared memory is not counted.
    """

    steps_per_second: float
    megabytes: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One contender in one place.

    Attributes:
        place: between which hosts: "100mbit", "one host", "one of 4 ranks slow", ...
        samples: one for each round.
        steps_to: steps until the accuracy was reached, of the seeds the most; None where that was not asked,
            or not reached.
        accuracies: at the end of these runs, by seed.
    """

    name: str
    place: str
    samples: tuple[Sample, ...]
    steps_to: int | None = None
    accuracies: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        """Steps a second, the median of the rounds."""
        return Spread.of([sample.steps_per_second for sample in self.samples]).median

    @property
    def megabytes(self) -> float:
        """Of a step, the median of the rounds."""
        return Spread.of([sample.megabytes for sample in self.samples]).median

    @property
    def seconds_to(self) -> float | None:
        """Until the accuracy was reached, at this rate."""
        return None if self.steps_to is None else self.steps_to / self.rate


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SyncReport:
    """One invocation of `ronde bench sync`."""

    machine: Machine
    batch_size: int
    target: float | None
    results: tuple[Way, ...]

    @property
    def model(self) -> str:
        """What was trained; where a rank is slow it is smaller."""
        smaller = any(each.place == SLOW_RANK for each in self.results)
        return "MLP of 5.8 M parameters" + (", of 0.67 M where a rank is slow" if smaller else "")

    def to_json(self) -> str:
        return written(KIND, self)


def table(report: SyncReport) -> str:
    """A row for each contender and place, under a line that says on what."""
    machine = report.machine
    heading = (
        f"{report.model}, global batch {report.batch_size}, on {machine.cpu}, load {machine.load} before"
    )
    rows = [("between", "way", "steps/s", "times DDP by hand", "MB a step", "time to accuracy", "accuracy")]
    for each in report.results:
        seconds = "" if each.seconds_to is None else f"{each.seconds_to:.0f} s"
        sent, accuracy = f"{each.megabytes:.3g}", _accuracy(each.accuracies)
        rows.append(
            (each.place, each.name, f"{each.rate:.2f}", _ratio(report, each), sent, seconds, accuracy)
        )
    return "\n".join([heading, "", columns(rows), *_hidden_lines(report)])


def _accuracy(of_seeds: tuple[float, ...]) -> str:
    """The mean, and where there are several the least and the largest."""
    if not of_seeds:
        return ""
    mean = f"{sum(of_seeds) / len(of_seeds):.2%}"
    return mean if len(of_seeds) == 1 else f"{mean} ({min(of_seeds):.2%} to {max(of_seeds):.2%})"


def _ratio(report: SyncReport, way: Way) -> str:
    """Of the rounds' ratios the median; a round has one run of each."""
    base = next((each for each in report.results if (each.place, each.name) == (way.place, BASE)), None)
    if base is None:
        return ""
    pairs = zip(way.samples, base.samples, strict=False)
    return f"{Spread.of([own.steps_per_second / other.steps_per_second for own, other in pairs]).median:.2f}"


def _hidden_lines(report: SyncReport) -> list[str]:
    found: list[str] = []
    for place in dict.fromkeys(each.place for each in report.results):
        ways = {each.name: each for each in report.results if each.place == place}
        if {"async-average", _ALONE, BASE} <= ways.keys():
            share = hidden(*(ways[name].samples for name in ("async-average", _ALONE, BASE)))
            found.append(f"{place}: async-average hides {share:.0%} of what it sends")
    return found


def hidden(own: tuple[Sample, ...], alone: tuple[Sample, ...], base: tuple[Sample, ...]) -> float:
    """The share of communication that does not lengthen a step.

    By bytes: what a megabyte takes DDP, beyond the step without exchange, is what it would take here, if
    nothing were hidden.
    """
    step, without, exposed = (
        Spread.of([1 / each.steps_per_second for each in samples]).median for samples in (own, alone, base)
    )
    sent, of_base = (Spread.of([each.megabytes for each in samples]).median for samples in (own, base))
    all_of_it = (exposed - without) * sent / max(of_base, 1e-9)
    return max(0.0, min(1.0, 1 - (step - without) / max(all_of_it, 1e-9)))
