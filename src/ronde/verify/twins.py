"""Repeats and twins of the plain run: reproducibility, and the noise of rounding."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Iterable

from ronde.verify.clauses import control, data, randomness, update, values
from ronde.verify.clauses.noise import Noise
from ronde.verify.clauses.verdict import Status, Tolerance
from ronde.verify.record import RankRecord, Turned, Twin
from ronde.verify.runs import FinishedRun

__all__ = ["TWINS", "Parting", "Rounding", "first_parting", "noise_of", "rounding_of", "unrepeated", "why"]

TWINS: tuple[Twin, ...] = ("halves", "up", "threads")
"""Twins that differ from the plain run by rounding; the largest difference is the noise floor."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Parting:
    """A plain run's departure from the first.

    Attributes:
        step: the first optimizer step, counted from 1, in which or after which it does something else.
        what: the difference in words.
    """

    step: int
    what: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rounding:
    """A departure from plain python by rounding, at a tie or a kink.

    Attributes:
        step: the first optimizer step after which the runs differ by more than the noise floor allows.
        turned: the closest of the numbers within rounding of a tie or a kink until then.
    """

    step: int
    turned: Turned


def unrepeated(plain: FinishedRun, again: FinishedRun, tolerance: Tolerance) -> Parting | None:
    """Find the first departure of a repeated plain run; None if it repeats.

    Printed and written output does not count: names and times that differ there are left out.
    """
    if again.exit_code != plain.exit_code:
        what = f"the second run ended with exit code {again.exit_code}, the first with {plain.exit_code}"
        return Parting(step=len(again.records[0].steps) + 1, what=what)

    def differ(one: RankRecord, other: RankRecord) -> str:
        verdicts = (
            update.compare(other, [one], tolerance),
            values.compare(other, [one], tolerance),
        )
        return _course(one, other) or next((each.divergence for each in verdicts if each.divergence), "")

    return _parting(again.records[0], plain.records[0], differ)


def first_parting(plain: FinishedRun, twins: Iterable[FinishedRun]) -> Parting | None:
    """Find the earliest departure among twins: other batches, steps, branches or draws."""
    found = (_parting(twin.records[0], plain.records[0], _course) for twin in twins)
    return min((each for each in found if each is not None), key=lambda each: each.step, default=None)


def _parting(
    run: RankRecord, plain: RankRecord, differ: Callable[[RankRecord, RankRecord], str]
) -> Parting | None:
    if not differ(run, plain):
        return None
    steps = range(1, max(len(run.steps), len(plain.steps)) + 1)
    # A difference in the records before a step is also in the records before every later one.
    count = bisect.bisect_left(
        steps, True, key=lambda n: bool(differ(run.before(n + 1), plain.before(n + 1)))
    )
    what = differ(run.before(count + 2), plain.before(count + 2)) or differ(run, plain)
    what = (
        what.removeprefix("rank 0, ")
        .removeprefix("rank 0: ")
        .replace(" in plain python", " in the first run")
    )
    return Parting(step=count + 1, what=what)


def _course(run: RankRecord, plain: RankRecord) -> str:
    """Describe the first difference in anything but values; "" without one."""
    verdicts = (
        data.compare(plain, [run]),
        control.compare(plain, [run], plain_exit=0, ranks_exit=0),
        randomness.compare(plain, [run]),
    )
    broken = next((each.divergence for each in verdicts if each.status is Status.broken), "")
    layouts = (
        f"step {step.step} ({step.optimizer}): {wrong}"
        for step, expected in zip(run.steps, plain.steps, strict=False)
        if (wrong := update.differing_layout(step, expected))
    )
    return broken or next(layouts, "")


def why(plain: FinishedRun) -> str:
    """Describe the likely causes of a plain run's departure from its repeat."""
    starts = plain.records[0].starts
    kinds = [(name, starts[what]) for what, name in _KINDS.items() if what in starts]
    if kinds:
        named = " and ".join(f"the {name} started at {', '.join(places[:3])}" for name, places in kinds)
        return f"{named} run at their own pace"
    return (
        "it starts no process and no thread, so look for a set's order, addresses in memory, torch.empty, a "
        "library's clock, files that a run changes"
    )


_KINDS = {"process": "processes", "thread": "threads"}


def noise_of(plain: FinishedRun, twins: Iterable[FinishedRun]) -> Noise:
    """Measure the distance of the twins from the plain run."""
    reference = plain.records[0]

    def noise(record: RankRecord) -> Noise:
        apart = update.differences(record, reference)
        return Noise(
            vector=apart.vector,
            shares=apart.shares,
            tensors=apart.tensors,
            gradients=values.norm_differences(record, reference),
            values=values.value_differences(record, reference),
        )

    return Noise.largest(noise(twin.records[0]) for twin in twins)


def rounding_of(plain: FinishedRun, run: FinishedRun, turned: FinishedRun, noise: Noise) -> Rounding | None:
    """Find a departure by rounding at a tie or a kink; None without one.

    Args:
        turned: the twin whose numbers at ties and kinks were turned.
        noise: the noise of the other twins.
    """
    reference = plain.records[0]
    apart = Noise.largest(
        Noise(
            vector=update.differences(rank, reference).vector,
            gradients=values.norm_differences(rank, reference),
        )
        for rank in run.records
    )
    steps = range(1, len(reference.steps) + 1)
    begun = next(
        (
            step
            for step in steps
            if apart.vector_at(step) > 3 * noise.vector_at(step)
            or apart.gradients_at(step) > 3 * noise.gradients_at(step)
        ),
        len(reference.steps),
    )
    until = [each for each in turned.records[0].turned if each.step <= begun]
    at = [each for each in until if each.step == begun] or until
    return Rounding(step=begun, turned=min(at, key=lambda each: each.apart)) if at else None
