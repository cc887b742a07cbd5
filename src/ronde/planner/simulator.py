"""Simulates a pipeline's step by events: turns of stages, waits for neighbours and links."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

from ronde.plan.compute import Schedule
from ronde.plan.schedule import Turn, turns

__all__ = ["PipelineTimeline", "StageTurn", "simulate"]

_NEVER = math.inf
_KINDS = "FBW"
_FORWARD, _BACKWARD = range(2)


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
    orders = _orders(schedule, stages, micros, chunks)
    parts = 2 * chunks if schedule == "zero-bubble" else chunks
    lengths = [
        [seconds / share for seconds in line] for line, share in ((forward, chunks), (backward, parts))
    ]
    lengths.append(lengths[_BACKWARD])
    places, free = [0] * stages, [0.0] * stages
    size = stages * chunks * micros
    end = size - micros
    # By virtual stage and piece: when a turn ended, and when its result was at the next stage.
    ended, arrived = ([[_NEVER] * size for _ in _KINDS] for _ in range(2))
    links = [[0.0] * stages for _ in _KINDS]
    spans: list[StageTurn] = []
    left = sum(map(len, orders))
    while left:
        before = left
        for stage, order in enumerate(orders):
            place, now = places[stage], free[stage]
            while place < len(order):
                kind, at, turn = order[place]
                if kind == _FORWARD:
                    ready = arrived[_FORWARD][at - micros] if at >= micros else 0.0
                elif kind == _BACKWARD:
                    ready = ended[_FORWARD][at]
                    if at < end and arrived[_BACKWARD][at + micros] > ready:
                        ready = arrived[_BACKWARD][at + micros]
                else:
                    ready = ended[_BACKWARD][at]
                if ready == _NEVER:
                    break
                start = ready if ready > now else now
                now = start + lengths[kind][stage]
                ended[kind][at] = now
                if busy:
                    begin = max(now, links[kind][stage])
                    links[kind][stage] = begin + busy
                    arrived[kind][at] = begin + send
                else:
                    arrived[kind][at] = now + send
                if drawn:
                    spans.append(StageTurn(stage, turn, start, now))
                place += 1
            left -= place - places[stage]
            places[stage], free[stage] = place, now
        assert left < before, "an order of a schedule waits for itself"
    return PipelineTimeline(tuple(spans), tuple(free))


@functools.lru_cache(maxsize=64)
def _orders(
    schedule: Schedule, stages: int, micros: int, chunks: int
) -> tuple[tuple[tuple[int, int, Turn], ...], ...]:
    """Return each stage's turns, with kind, and place of virtual stage and piece."""
    return tuple(
        tuple(
            (_KINDS.index(turn.kind), (turn.chunk * stages + stage) * micros + turn.piece, turn)
            for turn in turns(schedule, stage, stages, micros, chunks)
        )
        for stage in range(stages)
    )
