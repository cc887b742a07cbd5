"""Rounds of contenders: a disturbance of the machine slows all of them alike.

    round     1    2    3    4   ...
    first     A    B    C    A
    second    B    C    A    B
    third     C    A    B    C

The first changes with every round: a machine that warms up, or a full cache, favours none. Runs never
overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ronde.bench.contenders import Contender
from ronde.bench.sample import Sample
from ronde.errors import BenchError

__all__ = ["OURS", "ROUNDING", "Progress", "are_near", "check_same_training", "measure", "orders", "ratios"]

OURS = "ronde"
ROUNDING = 0.05
"""Distance of last losses by the rounding of fp32 over some dozens of steps; other faults lie far beyond."""

Progress: TypeAlias = Callable[[str], object]
"""Receives a line on the progress."""


def orders(names: Sequence[str], rounds: int) -> list[tuple[str, ...]]:
    """Return the order of the contenders in each round.

    >>> orders(["ronde", "ddp"], 3)
    [('ronde', 'ddp'), ('ddp', 'ronde'), ('ronde', 'ddp')]
    """
    shifts = [index % len(names) for index in range(rounds)]
    return [(*names[shift:], *names[:shift]) for shift in shifts]


def ratios(ours: Sequence[float], others: Sequence[float]) -> tuple[float, ...]:
    """Divide the samples of two contenders, round by round.

    >>> ratios([1.0, 3.0], [2.0, 2.0])
    (0.5, 1.5)
    """
    return tuple(own / other for own, other in zip(ours, others, strict=True))


def measure(
    workload: str,
    contenders: Sequence[Contender],
    *,
    rounds: int,
    progress: Progress,
    first: str = OURS,
    tolerance: float = ROUNDING,
) -> dict[str, tuple[Sample, ...]]:
    """Run all contenders in rounds, and return the samples of each by name.

    Args:
        workload: the name for lines on the progress.
        first: the contender that others are compared with.
        tolerance: the distance of the last losses, as a part of the larger.
    """
    by_name = {contender.name: contender for contender in contenders}
    measured: dict[str, list[Sample]] = {name: [] for name in by_name}
    for number, order in enumerate(orders(list(by_name), rounds), 1):
        for name in order:
            measured[name].append(_run(by_name[name], progress))
        base = measured[first][-1]
        for name, each in by_name.items():
            allowed = tolerance if each.trains_alike else math.inf
            check_same_training(base, measured[name][-1], peer=name, tolerance=allowed)
        progress(f"{workload}, round {number} of {rounds}: {_line(measured, first)}")
    return {name: tuple(samples) for name, samples in measured.items()}


def _line(measured: Mapping[str, Sequence[Sample]], first: str) -> str:
    base = measured[first][-1]
    figures = [f"{first} {base.samples_per_second:.1f} samples/s in {base.wall_seconds:.2f} s"]
    for name, samples in measured.items():
        if name != first:
            speed = samples[-1].samples_per_second
            figures.append(f"{name} {speed:.1f} (ratio {base.samples_per_second / speed:.3f})")
    return ", ".join(figures)


def _run(contender: Contender, progress: Progress) -> Sample:
    for _ in range(contender.retries):
        try:
            return contender.run()
        except BenchError as error:
            progress(f"{contender.name} failed in this round and ran once more: {error}")
    return contender.run()


def check_same_training(ours: Sample, other: Sample, *, peer: str, tolerance: float = ROUNDING) -> None:
    """Refuse to compare runs that did different work.

    Raises:
        BenchError: workload, batch, steps, threads or the last loss differ.
    """
    for name in ("workload", "batch_size", "steps", "threads", "torch", "device"):
        if getattr(ours, name) != getattr(other, name):
            raise BenchError(
                f"the runs are not comparable: {name} is {getattr(ours, name)} in ronde's and "
                f"{getattr(other, name)} in {peer}'s; all must be given the same [R853]"
            )
    if not are_near(ours.loss, other.loss, tolerance):
        raise BenchError(
            f"{ours.workload} did not train alike: the last loss is {ours.loss:.6g} under ronde and "
            f"{other.loss:.6g} with {peer}; run `ronde verify` on the script before measuring it [R854]"
        )


def are_near(one: float, other: float, tolerance: float) -> bool:
    """Return whether two last losses may come from equal trainings."""
    return abs(one - other) <= tolerance * max(abs(one), abs(other), 0.1)
