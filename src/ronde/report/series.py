"""Data series for pictures of a run: pure functions of its ranks' records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ronde.trace.step_file import ROUTES, StepRecord, StepsOfRank

__all__ = [
    "PARTS",
    "Point",
    "Straggling",
    "by_phase",
    "by_route",
    "losses",
    "memory",
    "over_time",
    "rates",
    "stragglers",
    "throughput",
]

PARTS = ("data", "forward", "backward", "optimizer", "communication", "other")
"""The parts of a rank's time, in the order of their display."""

Point = tuple[float, float]

POINTS = 240
_RECENT_S = 10.0


def losses(records: Sequence[StepRecord]) -> list[Point]:
    """Return the script's loss by step; many steps are averaged in groups."""
    read = [each for each in records if each.losses]
    points: list[Point] = []
    for group in _groups(read):
        known = [each for each in group if math.isfinite(each.loss)]
        count = sum(each.losses for each in known)
        if count:
            points.append((group[-1].step, sum(each.loss * each.losses for each in known) / count))
    return points


def throughput(records: Sequence[StepRecord], begun: int) -> tuple[list[Point], str]:
    """Return samples per second by seconds since `begun`, and the unit.

    Without counted samples the values are steps per second.
    """
    steps = [each for each in records if each.steps]
    unit = "samples/s" if any(each.samples for each in steps) else "steps/s"
    points: list[Point] = []
    for group in _groups(steps, POINTS // 2):
        seconds = sum(each.seconds for each in group)
        done = sum(each.samples if unit == "samples/s" else each.steps for each in group)
        points.append(((group[-1].ended - begun) / 1e9, done / max(seconds, 1e-9)))
    return points, unit


def memory(records: Sequence[StepRecord], begun: int, *, device: bool = False) -> list[Point]:
    """Return bytes by seconds since `begun`: of the process, or of its device."""
    return [
        ((group[-1].ended - begun) / 1e9, max(each.device if device else each.resident for each in group))
        for group in _groups(records)
    ]


def by_phase(records: Sequence[StepRecord]) -> dict[str, float]:
    """Return the seconds in each of `PARTS`."""
    return {part: sum(_parts(each)[part] for each in records) / 1e9 for part in PARTS}


def over_time(
    ranks: Sequence[StepsOfRank], begun: int, columns: int = 48
) -> list[tuple[float, dict[str, float]]]:
    """Return the share of each part over time, as a mean of all ranks.

    Columns have equal time, in seconds since `begun`. A record that spans several columns is divided among
    them.
    """
    ends = [each.ended + rank.offset for rank in ranks for each in rank.course[-1:]]
    if not ends:
        return []
    length = max(1, max(ends) - begun)
    totals: list[dict[str, float]] = [dict.fromkeys(PARTS, 0.0) for _ in range(columns)]
    width = length / columns
    for rank in ranks:
        for each in rank.course:
            parts, whole = _parts(each), max(1, each.ended - each.begun)
            first = max(0.0, (each.begun + rank.offset - begun) / width)
            last = min(float(columns), (each.ended + rank.offset - begun) / width)
            for column in range(int(first), min(columns, math.ceil(last))):
                inside = (min(last, column + 1) - max(first, column)) * width / whole
                for part, spent in parts.items():
                    totals[column][part] += spent * inside
    shares: list[tuple[float, dict[str, float]]] = []
    for column, total in enumerate(totals):
        whole = sum(total.values())
        divided = {part: spent / whole if whole else 0.0 for part, spent in total.items()}
        shares.append(((column + 1) * width / 1e9, divided))
    return shares


@dataclasses.dataclass(frozen=True, slots=True)
class Straggling:
    """Time that a rank kept others waiting, and waited itself.

    Attributes:
        collectives: the number that it took part in.
        last: share of them to which it came last of its host.
        late: seconds that the last but one had waited by then, in total.
        waited: seconds in which it waited for others.
    """

    rank: int
    collectives: int
    last: float
    late: float
    waited: float


def stragglers(ranks: Sequence[StepsOfRank]) -> list[Straggling]:
    """Return one result for each rank, in order."""
    found: list[Straggling] = []
    for rank in ranks:
        collectives = sum(each.collectives for each in rank.course)
        found.append(
            Straggling(
                rank.rank,
                collectives,
                sum(each.last for each in rank.course) / max(1, collectives),
                sum(each.late for each in rank.course) / 1e9,
                sum(each.waited for each in rank.course) / 1e9,
            )
        )
    return found


def by_route(records: Sequence[StepRecord]) -> dict[str, int]:
    """Return the bytes sent by each route, without unused routes."""
    totals = {route: sum(each.sent[place] for each in records) for place, route in enumerate(ROUTES)}
    return {route: nbytes for route, nbytes in totals.items() if nbytes}


def rates(rank: StepsOfRank) -> tuple[float, float] | None:
    """Return recent steps and samples per second; None with fewer than two steps."""
    if not rank.recent:
        return None
    since = rank.recent[-1].ended - _RECENT_S * 1e9
    late = [each for each in rank.recent if each.begun >= since] or list(rank.recent[-1:])
    seconds = (late[-1].ended - late[0].begun) / 1e9
    if rank.steps < 2 or seconds <= 0:
        return None
    return sum(each.steps for each in late) / seconds, sum(each.samples for each in late) / seconds


def _parts(record: StepRecord) -> dict[str, int]:
    return {
        "data": record.data,
        "forward": record.forward,
        "backward": record.backward,
        "optimizer": record.optimizer,
        "communication": record.waited,
        "other": record.other,
    }


def _groups(records: Sequence[StepRecord], most: int = POINTS) -> list[Sequence[StepRecord]]:
    """Divide records into consecutive groups of about as many steps each.

    The number of groups is at most about `most`.
    """
    total = sum(max(1, each.steps) for each in records)
    wanted = max(1.0, total / most)
    groups: list[Sequence[StepRecord]] = []
    start, taken = 0, 0
    for place, each in enumerate(records):
        taken += max(1, each.steps)
        if taken >= wanted * (len(groups) + 1) or place == len(records) - 1:
            groups.append(records[start : place + 1])
            start = place + 1
    return groups
