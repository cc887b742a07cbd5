"""Estimate whether one process would have been faster than the run.

The time of one process is unknown, but has bounds. One process runs without ronde's code and without waiting,
but computes the rows of all ranks. At best that takes as long as one rank takes for its rows: if the time is
spent in calling operations, and if the process has the cores of all ranks. At worst it computes the ranks'
rows one after another. Samples are read one after another in any case.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ronde.trace.step_clock import StepTimes

__all__ = ["Division", "division", "too_small_line"]

# Fewest steps for an estimate, and the factor by which the run must be slower for a warning.
_FEWEST_STEPS = 50
_CLEARLY = 1.25


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """Seconds that an undisturbed step takes.

    Attributes:
        ranks: number of ranks.
        divided: seconds on these ranks.
        cost: part of `divided` that one process does not have: ronde's own code and collectives.
        about, most: seconds in one process: the estimate, and its upper bound.
    """

    ranks: int
    divided: float
    cost: float
    about: float
    most: float

    @property
    def is_slower(self) -> bool:
        """Return whether one process is clearly faster, and at worst not slower."""
        return self.divided >= max(_CLEARLY * self.about, self.most)


def division(ranks: Sequence[StepTimes], world_size: int) -> Division | None:
    """Compute the cost of dividing a step; None if no rank is known.

    The rank that waited least is used, because the others also waited for it, for other reasons. If not all
    ranks are known, this rank may be missing, so waiting is left out.
    """
    if not ranks:
        return None
    slowest = min(ranks, key=lambda times: times.waited)
    waited = slowest.waited if len(ranks) == world_size else 0.0
    cost = min(slowest.own + waited, slowest.whole)
    about = slowest.whole - cost + (world_size - 1) * slowest.rows
    return Division(
        ranks=world_size,
        divided=slowest.whole,
        cost=cost,
        about=about,
        most=about + (world_size - 1) * slowest.model,
    )


def too_small_line(found: Division | None, steps: int) -> str:
    """Format a warning about small steps; "" if dividing the work was worth it.

    Runs of a few steps are not judged.
    """
    if found is None or steps < _FEWEST_STEPS or not found.is_slower:
        return ""
    return (
        f"an undisturbed step took {_ms(found.divided)} ms on {found.ranks} ranks, and would take about "
        f"{_ms(found.about)} ms in one process, {_ms(found.most)} ms at most: it is too small to be "
        f"divided, as ronde's own code and collectives take {_ms(found.cost)} ms of it; use "
        f"--ranks 1, or larger batches [R322]"
    )


def _ms(seconds: float) -> str:
    """Format milliseconds with two significant digits.

    >>> _ms(0.000341), _ms(0.0021), _ms(0.1234)
    ('0.34', '2.1', '123')
    """
    value = seconds * 1000
    if value >= 10:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"
