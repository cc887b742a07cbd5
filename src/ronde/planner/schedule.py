"""Orders in which stages of a pipeline work: pure functions that return data.

1f1b, 3 stages, 4 micro-batches (F forward, B backward):
stage 0  F0 F1 F2 B0 F3 B1 B2 B3
stage 1  F0 F1 B0 F2 B1 F3 B2 B3
stage 2  F0 B0 F1 B1 F2 B2 F3 B3
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from ronde.plan.compute import Schedule

__all__ = ["Action", "order"]

Kind = Literal["F", "B", "W"]


@dataclasses.dataclass(frozen=True, slots=True)
class Action:
    """Forward (F), backward (B), or backward of weights by itself (W), of one micro-batch in one chunk."""

    kind: Kind
    micro: int
    chunk: int = 0


def order(schedule: Schedule, stage: int, stages: int, micros: int, chunks: int = 1) -> list[Action]:
    """What a stage does, in order.

    `interleaved` (Narayanan et al. 2021) needs `micros` to be a multiple of `stages`; `zero-bubble` is ZB-H1
    (Qi et al. 2023): B computes gradients of inputs only, and W follows as many B later as the stage's
    number.
    """
    match schedule:
        case "gpipe":
            forward = [Action("F", micro) for micro in range(micros)]
            return forward + [Action("B", micro) for micro in range(micros)]
        case "1f1b":
            return _one_by_one(
                [Action("F", each) for each in range(micros)], _back(micros), stages - stage - 1
            )
        case "interleaved":
            return _interleaved(stage, stages, micros, chunks)
        case "zero-bubble":
            return _zero_bubble(stage, stages, micros)


def _back(micros: int) -> list[Action]:
    return [Action("B", micro) for micro in range(micros)]


def _one_by_one(forward: list[Action], backward: list[Action], ahead: int) -> list[Action]:
    """Some forwards ahead, then one forward and one backward in turn."""
    warm = min(ahead, len(forward))
    done = forward[:warm]
    for there, back in zip(forward[warm:], backward, strict=False):
        done += [there, back]
    return done + backward[len(forward) - warm :]


def _interleaved(stage: int, stages: int, micros: int, chunks: int) -> list[Action]:
    def action(kind: Kind, place: int) -> Action:
        group, inside = divmod(place, stages * chunks)
        chunk = inside // stages
        micro = group * stages + inside % stages
        return Action(kind, micro, chunk if kind == "F" else chunks - 1 - chunk)

    every = range(micros * chunks)
    ahead = (stages - stage - 1) * 2 + (chunks - 1) * stages
    if micros == stages:
        ahead = len(every)
    return _one_by_one([action("F", each) for each in every], [action("B", each) for each in every], ahead)


def _zero_bubble(stage: int, stages: int, micros: int) -> list[Action]:
    done: list[Action] = []
    backs = weights = 0
    for action in _one_by_one(
        [Action("F", each) for each in range(micros)], _back(micros), stages - stage - 1
    ):
        done.append(action)
        if action.kind == "B":
            backs += 1
            if backs > stage:
                done.append(Action("W", weights))
                weights += 1
    return done + [Action("W", each) for each in range(weights, micros)]
