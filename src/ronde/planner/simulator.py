"""Simulates a pipeline's step by events: turns of stages, waits for neighbours and links."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ronde.plan.compute import Schedule
from ronde.plan.schedule import Turn, turns

__all__ = ["PipelineTimeline", "StageTurn", "simulate"]


@dataclasses.dataclass(frozen=True, slots=True)
class StageTurn:
    """One turn of a stage, from `start` to `end` in seconds."""

    stage: int
    turn: Turn
    start: float
    end: float


@dataclasses.dataclass(frozen=True, slots=True)
class PipelineTimeline:
    """The turns of all stages; `ends` has each stage's last second."""

    spans: tuple[StageTurn, ...]
    ends: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return max(self.ends)


def simulate(
    schedule: Schedule,
    forward: Sequence[float],
    backward: Sequence[float],
    micros: int,
    *,
    chunks: int = 1,
    send: float = 0.0,
    busy: float = 0.0,
) -> PipelineTimeline:
    """Simulate all stages of a pipeline.

    Args:
        forward, backward: seconds of a micro-batch on each stage, all its chunks together. Under
            `zero-bubble` half of backward is W.
        send: seconds until one stage's output is at the next.
        busy: seconds for which a send keeps the link between two stages from the next one; 0 without
            contention.

    Stages do not block each other: each round runs every turn that has its inputs.
    """
    stages = len(forward)
    orders = [turns(schedule, stage, stages, micros, chunks) for stage in range(stages)]
    split = schedule == "zero-bubble"
    places = [0] * stages
    free = [0.0] * stages
    links: dict[tuple[int, str], float] = {}
    there: dict[tuple[str, int, int], float] = {}
    spans: list[StageTurn] = []
    left = sum(map(len, orders))
    last = stages * chunks - 1
    while left:
        moved = False
        for stage in range(stages):
            while places[stage] < len(orders[stage]):
                turn = orders[stage][places[stage]]
                virtual = turn.chunk * stages + stage
                ready = _ready(turn, virtual, last, there)
                if ready is None:
                    break
                start = max(free[stage], ready)
                seconds = forward[stage] if turn.kind == "F" else backward[stage] / (2 if split else 1)
                end = start + seconds / chunks
                free[stage] = end
                there[f"{turn.kind}-", turn.piece, virtual] = end
                there[turn.kind, turn.piece, virtual] = _sent(links, (stage, turn.kind), end, send, busy)
                spans.append(StageTurn(stage, turn, start, end))
                places[stage] += 1
                left -= 1
                moved = True
        assert moved, "an order of a schedule waits for itself"
    return PipelineTimeline(tuple(spans), tuple(free))


def _ready(turn: Turn, virtual: int, last: int, there: dict[tuple[str, int, int], float]) -> float | None:
    """Return the second at which a turn has its inputs; None while unknown."""
    if turn.kind == "F":
        return 0.0 if virtual == 0 else there.get(("F", turn.piece, virtual - 1))
    if turn.kind == "W":
        return there.get(("B-", turn.piece, virtual))
    own = there.get(("F-", turn.piece, virtual))
    if own is None or virtual == last:
        return own
    behind = there.get(("B", turn.piece, virtual + 1))
    return None if behind is None else max(own, behind)


def _sent(
    links: dict[tuple[int, str], float], link: tuple[int, str], end: float, send: float, busy: float
) -> float:
    begin = max(end, links.get(link, 0.0))
    links[link] = begin + busy
    return begin + send
