"""The order of micro-batches through a pipeline, and a drawing of it: a row for each stage, backward twice
forward.

`gpipe` (Huang et al. 2019): all micro-batches forward, then all backward, last to first. `1f1b` (PipeDream's
with a flush, Narayanan et al. 2021): a stage goes ahead by as many micro-batches as there are stages behind
it, then has one backward after each forward; so it keeps no more of them than there are stages.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal, NamedTuple

__all__ = ["Turn", "bubble", "drawn", "turns"]

# What fits beside other columns of a terminal.
_WIDEST = 96
_COLUMNS = {"F": 1, "B": 2}


class Turn(NamedTuple):
    """What a stage does next.

    Attributes:
        kind: forward or backward.
        piece: of which micro-batch, counted from 0.
    """

    kind: Literal["F", "B"]
    piece: int


def turns(schedule: str, stage: int, stages: int, count: int) -> list[Turn]:
    """What a stage does with `count` micro-batches, in order.

    >>> " ".join(f"{kind}{piece}" for kind, piece in turns("1f1b", 0, 2, 3))
    'F0 F1 B0 F2 B1 B2'
    >>> " ".join(f"{kind}{piece}" for kind, piece in turns("gpipe", 0, 2, 3))
    'F0 F1 F2 B2 B1 B0'
    """
    ahead = min(stages - 1 - stage, count)
    if schedule == "gpipe":
        return [Turn("F", each) for each in range(count)] + [
            Turn("B", each) for each in reversed(range(count))
        ]
    found = [Turn("F", each) for each in range(ahead)]
    for each in range(count - ahead):
        found += [Turn("F", ahead + each), Turn("B", each)]
    return found + [Turn("B", each) for each in range(count - ahead, count)]


def drawn(stages: int, micro_batches: int, schedule: str = "gpipe") -> str:
    """A line for each stage and one for the bubble; "" for a single stage.

    >>> print(drawn(2, 2))
    stage 0  F1F2      B2..B1..
    stage 1    F1F2B2..B1..
    idle 1/3 of the time; more micro-batches make it less
    >>> print(drawn(2, 2, "1f1b"))
    stage 0  F1F2    B1..  B2..
    stage 1    F1B1..F2B2..
    idle 1/3 of the time; more micro-batches make it less
    """
    if stages == 1:
        return ""
    share = f"idle {bubble(stages, micro_batches)} of the time; more micro-batches make it less"
    width = len(str(micro_batches)) + 1
    columns = (stages + micro_batches - 1) * 3 * width
    if columns > _WIDEST:
        return (
            f"{stages} stages, {micro_batches} micro-batches forward, then backward, {_IN_WORDS[schedule]}; "
            f"{share}"
        )
    begins = _begins(schedule, stages, micro_batches)
    lines = [_row(begins[stage], columns // width, width).rstrip() for stage in range(stages)]
    return "\n".join([*(f"stage {stage}  {line}" for stage, line in enumerate(lines)), share])


_IN_WORDS = {"gpipe": "last to first", "1f1b": "first to last"}


def bubble(stages: int, micro_batches: int) -> str:
    """The share of its time in which a stage waits, as a fraction; of both schedules alike."""
    return str(Fraction(stages - 1, stages - 1 + micro_batches))


def _begins(schedule: str, stages: int, count: int) -> list[dict[Turn, int]]:
    """For each stage when it begins what it does, in columns."""
    left = [turns(schedule, stage, stages, count) for stage in range(stages)]
    begins: list[dict[Turn, int]] = [{} for _ in range(stages)]
    free = [0] * stages
    while any(left):
        for stage in range(stages):
            turn = left[stage][0] if left[stage] else None
            if turn is None:
                continue
            before = stage + (-1 if turn.kind == "F" else 1)
            given = begins[before].get(turn) if 0 <= before < stages else 0
            if given is None:
                continue
            ready = given + _COLUMNS[turn.kind] if 0 <= before < stages else 0
            begins[stage][turn] = max(ready, free[stage])
            free[stage] = begins[stage][turn] + _COLUMNS[turn.kind]
            left[stage].pop(0)
    return begins


def _row(begins: dict[Turn, int], columns: int, width: int) -> str:
    cells = [" " * width] * columns
    for (kind, piece), place in begins.items():
        cells[place] = f"{kind}{piece + 1}".ljust(width)
        if kind == "B":
            cells[place + 1] = "." * width
    return "".join(cells)
