"""Simulates a pipeline's step by events: turns of stages, waits for neighbours and links."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ronde.plan.compute import Schedule
from ronde.plan.schedule import Turn, turns

__all__ = ["PipelineTimeline", "StageTurn", "simulate"]

_NEVER = math.inf


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
    drawn: bool = True,
) -> PipelineTimeline:
    """Simulate all stages of a pipeline.

    Args:
        forward, backward: seconds of a micro-batch on each stage, all its chunks together. Under
            `zero-bubble` half of backward is W.
        send: seconds until one stage's output is at the next.
        busy: seconds for which a send keeps the link between two stages from the next one; 0 without
            contention.
        drawn: whether the timeline has its spans.

    Stages do not block each other: each round runs every turn that has its inputs.
    """
    stages = len(forward)
    orders = [turns(schedule, stage, stages, micros, chunks) for stage in range(stages)]
    parts = 2 * chunks if schedule == "zero-bubble" else chunks
    lengths = {
        "F": [seconds / chunks for seconds in forward],
        "B": [seconds / parts for seconds in backward],
        "W": [seconds / parts for seconds in backward],
    }
    places, free = [0] * stages, [0.0] * stages
    last = stages * chunks - 1
    # By virtual stage and piece: when a turn ended, and when its result was at the next stage.
    ended, arrived = (
        {kind: [[_NEVER] * micros for _ in range(last + 1)] for kind in "FBW"} for _ in range(2)
    )
    links = {kind: [0.0] * stages for kind in "FBW"}
    spans: list[StageTurn] = []
    left = sum(map(len, orders))
    while left:
        before = left
        for stage, order in enumerate(orders):
            place, now = places[stage], free[stage]
            while place < len(order):
                turn = order[place]
                kind, piece = turn.kind, turn.piece
                virtual = turn.chunk * stages + stage
                if kind == "W":
                    ready = ended["B"][virtual][piece]
                elif kind == "F":
                    ready = arrived["F"][virtual - 1][piece] if virtual else 0.0
                else:
                    ready = ended["F"][virtual][piece]
                    if virtual < last:
                        ready = max(ready, arrived["B"][virtual + 1][piece])
                if ready == _NEVER:
                    break
                start = ready if ready > now else now
                now = start + lengths[kind][stage]
                ended[kind][virtual][piece] = now
                begin = max(now, links[kind][stage])
                links[kind][stage] = begin + busy
                arrived[kind][virtual][piece] = begin + send
                if drawn:
                    spans.append(StageTurn(stage, turn, start, now))
                place += 1
            left -= place - places[stage]
            places[stage], free[stage] = place, now
        assert left < before, "an order of a schedule waits for itself"
    return PipelineTimeline(tuple(spans), tuple(free))
