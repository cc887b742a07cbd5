"""Order of micro-batches through a pipeline, and a drawing of it.

The drawing has a row for each stage; backward is twice as wide as forward.

`gpipe` (Huang et al. 2019): all micro-batches forward, then all backward, last to first. `1f1b` (PipeDream's
with a flush, Narayanan et al. 2021): a stage goes ahead by as many micro-batches as there are stages after
it, then has one backward after each forward; so it keeps no more of them than there are stages.
`interleaved` (Narayanan et al. 2021): each rank has several chunks of the model, and micro-batches go through
them in groups of as many as there are ranks. `zero-bubble` (ZB-H1, Qi et al. 2023): backward of inputs alone,
and that of weights so many micro-batches later that it fills the time in which a stage would wait.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

from ronde.plan.compute import Schedule

__all__ = ["CHUNKS", "Kind", "Turn", "bubble", "chunks_of", "drawn", "most_under_way", "turns"]

CHUNKS = 2
"""Of the model on each rank under `interleaved`."""

Kind = Literal["F", "B", "W"]

# Largest width of a drawing in a terminal.
_WIDEST = 96


class Turn(NamedTuple):
    """Next work of a stage.

    Attributes:
        kind: forward, backward, or backward of weights by itself.
        piece: index of the micro-batch, from 0.
        chunk: index of the chunk of the model on this rank.
    """

    kind: Kind
    piece: int
    chunk: int = 0


def chunks_of(schedule: Schedule | None) -> int:
    """Return the number of model chunks per rank."""
    return CHUNKS if schedule == "interleaved" else 1


def turns(schedule: Schedule, stage: int, stages: int, count: int, chunks: int = 1) -> list[Turn]:
    """Return a stage's turns with `count` micro-batches, in order.

    >>> " ".join(f"{kind}{piece}" for kind, piece, _ in turns("1f1b", 0, 2, 3))
    'F0 F1 B0 F2 B1 B2'
    >>> " ".join(f"{kind}{piece}" for kind, piece, _ in turns("gpipe", 0, 2, 3))
    'F0 F1 F2 B2 B1 B0'
    >>> " ".join(f"{kind}{piece}" for kind, piece, _ in turns("zero-bubble", 1, 2, 3))
    'F0 B0 F1 B1 W0 F2 B2 W1 W2'
    >>> " ".join(f"{kind}{piece}{'ab'[chunk]}" for kind, piece, chunk in turns("interleaved", 1, 2, 2, 2))
    'F0a F1a F0b B0b F1b B1b B0a B1a'
    """
    rounds = _rounds(stages, count)
    forward = [Turn("F", piece, chunk) for each in rounds for chunk in range(chunks) for piece in each]
    backward = [Turn("B", piece, chunks - 1 - chunk) for _, piece, chunk in forward]
    match schedule:
        case "gpipe":
            return forward + [Turn("B", piece, chunk) for _, piece, chunk in reversed(forward)]
        case "interleaved":
            longest = max(len(each) for each in rounds)
            return _alternating(forward, backward, 2 * (stages - 1 - stage) + (chunks - 1) * longest)
        case "1f1b":
            return _alternating(forward, backward, stages - 1 - stage)
        case "zero-bubble":
            return _weights_later(_alternating(forward, backward, stages - 1 - stage), stage)


def _rounds(stages: int, count: int) -> list[range]:
    """Split micro-batches into rounds; each passes a chunk of all ranks before the next.

    A round has as many micro-batches as there are ranks. The rest are spread over all rounds: with a round of
    fewer, ranks would wait for themselves.
    """
    rounds = max(count // stages, 1)
    ends = [count * each // rounds for each in range(rounds + 1)]
    return [range(first, end) for first, end in itertools.pairwise(ends)]


def _alternating(forward: list[Turn], backward: list[Turn], ahead: int) -> list[Turn]:
    """Return some forward turns, then one forward and one backward alternately."""
    ahead = min(ahead, len(forward))
    both = zip(forward[ahead:], backward, strict=False)
    return [*forward[:ahead], *(each for pair in both for each in pair), *backward[len(forward) - ahead :]]


def _weights_later(order: list[Turn], behind: int) -> list[Turn]:
    """Insert a turn of weights after each backward, for the micro-batch `behind` turns earlier."""
    found: list[Turn] = []
    pieces = [each.piece for each in order if each.kind == "B"]
    for turn in order:
        found.append(turn)
        if turn.kind == "B" and (place := pieces.index(turn.piece)) >= behind:
            found.append(Turn("W", pieces[place - behind]))
    return found + [Turn("W", piece) for piece in pieces[max(len(pieces) - behind, 0) :]]


def most_under_way(order: Sequence[Turn]) -> int:
    """Return the largest number of micro-batches with live activations on a rank.

    Micro-batches of each chunk count.

    >>> [most_under_way(turns("1f1b", stage, 4, 8)) for stage in range(4)]
    [4, 3, 2, 1]
    >>> [most_under_way(turns("zero-bubble", stage, 4, 8)) for stage in range(4)]
    [4, 4, 4, 4]
    >>> [most_under_way(turns("interleaved", stage, 4, 8, 2)) for stage in range(4)]
    [11, 9, 7, 5]
    """
    last = "W" if any(each.kind == "W" for each in order) else "B"
    most = now = 0
    for turn in order:
        now += (turn.kind == "F") - (turn.kind == last)
        most = max(most, now)
    return most


def drawn(stages: int, micro_batches: int, schedule: Schedule = "gpipe") -> str:
    """Draw a line for each stage and one for the bubble; "" for one stage.

    >>> print(drawn(2, 2))
    stage 0  F1F2      B2..B1..
    stage 1    F1F2B2..B1..
    idle 1/3 of the time; more micro-batches make it less
    >>> print(drawn(2, 2, "1f1b"))
    stage 0  F1F2    B1..  B2..
    stage 1    F1B1..F2B2..
    idle 1/3 of the time; more micro-batches make it less
    >>> print(drawn(2, 2, "zero-bubble"))
    stage 0  F1F2  B1W1B2W2
    stage 1    F1B1F2B2W1W2
    idle 1/7 of the time; more micro-batches make it less
    >>> print(drawn(2, 2, "interleaved"))
    stage 0  F1aF2aF1bF2b      B1b...   B2b...B1a...B2a...
    stage 1     F1aF2aF1bB1b...F2bB2b...B1a...B2a...
    idle 1/5 of the time; more micro-batches make it less
    """
    if stages == 1:
        return ""
    share = f"idle {bubble(stages, micro_batches, schedule)} of the time; more micro-batches make it less"
    chunks = chunks_of(schedule)
    width = len(str(micro_batches)) + (1 if chunks == 1 else 2)
    if 3 * (stages + micro_batches * chunks) * width > _WIDEST:
        return (
            f"{stages} stages, {micro_batches} micro-batches forward, then backward, {_IN_WORDS[schedule]}; "
            f"{share}"
        )
    columns = {"F": 1, "B": 1 if schedule == "zero-bubble" else 2, "W": 1}
    rows = _begins(schedule, stages, micro_batches, chunks, columns)
    lines = [_row(begins, width, chunks, columns) for begins in rows]
    return "\n".join([*(f"stage {stage}  {line}" for stage, line in enumerate(lines)), share])


_IN_WORDS = {
    "gpipe": "last to first",
    "1f1b": "first to last",
    "interleaved": "chunk by chunk",
    "zero-bubble": "weights later",
}


def bubble(stages: int, micro_batches: int, schedule: Schedule = "gpipe") -> Fraction:
    """Return the share of time in which a stage waits.

    That is p - 1 turns, beside v m or 3 m others.

    >>> [str(bubble(4, 8, each)) for each in ("gpipe", "1f1b", "interleaved", "zero-bubble")]
    ['3/11', '3/11', '3/19', '1/9']
    """
    busy = micro_batches * (3 if schedule == "zero-bubble" else chunks_of(schedule))
    return Fraction(stages - 1, stages - 1 + busy)


def _begins(
    schedule: Schedule, stages: int, count: int, chunks: int, columns: dict[str, int]
) -> list[dict[Turn, int]]:
    """Return, for each stage, the column in which each turn begins."""
    left = [turns(schedule, stage, stages, count, chunks) for stage in range(stages)]
    begins: list[dict[Turn, int]] = [{} for _ in range(stages)]
    ends: dict[tuple[str, int, int], int] = {}
    free = [0] * stages
    while any(left):
        for stage in range(stages):
            turn = left[stage][0] if left[stage] else None
            if turn is None:
                continue
            place = turn.chunk * stages + stage
            before = {"F": place - 1, "B": place + 1, "W": -1}[turn.kind]
            ready = ends.get((turn.kind, turn.piece, before)) if 0 <= before < stages * chunks else 0
            if ready is None:
                continue
            begin = begins[stage][turn] = max(ready, free[stage])
            free[stage] = ends[turn.kind, turn.piece, place] = begin + columns[turn.kind]
            left[stage].pop(0)
    return begins


def _row(begins: dict[Turn, int], width: int, chunks: int, columns: dict[str, int]) -> str:
    cells: dict[int, str] = {}
    for (kind, piece, chunk), place in begins.items():
        name = f"{kind}{piece + 1}{'abcdefgh'[chunk] if chunks > 1 else ''}"
        cells[place] = name.ljust(width) + "." * (width * (columns[kind] - 1))
        cells |= {place + more: "" for more in range(1, columns[kind])}
    return "".join(cells.get(place, " " * width) for place in range(max(cells) + 1)).rstrip()
