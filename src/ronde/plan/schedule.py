"""The order of micro-batches through a pipeline, drawn: a row for each stage, backward twice forward.

GPipe's (Huang et al. 2019): all micro-batches forward, then all backward, last to first.
"""

from __future__ import annotations

from fractions import Fraction

__all__ = ["bubble", "drawn"]

# What fits beside other columns of a terminal.
_WIDEST = 96


def drawn(stages: int, micro_batches: int) -> str:
    """A line for each stage and one for the bubble; "" for a single stage.

    >>> print(drawn(2, 2))
    stage 0  F1F2      B2..B1..
    stage 1    F1F2B2..B1..
    idle 1/3 of the time; more micro-batches make it less
    """
    if stages == 1:
        return ""
    share = f"idle {bubble(stages, micro_batches)} of the time; more micro-batches make it less"
    width = len(str(micro_batches)) + 1
    columns = (stages + micro_batches - 1) * 3 * width
    if columns > _WIDEST:
        return (
            f"{stages} stages, {micro_batches} micro-batches forward, then backward, last to first; {share}"
        )
    lines = [_row(stage, stages, micro_batches, width).rstrip() for stage in range(stages)]
    return "\n".join([*(f"stage {stage}  {line}" for stage, line in enumerate(lines)), share])


def bubble(stages: int, micro_batches: int) -> str:
    """The share of its time in which a stage waits, as a fraction."""
    return str(Fraction(stages - 1, stages - 1 + micro_batches))


def _row(stage: int, stages: int, count: int, width: int) -> str:
    """One stage: forward of micro-batch i begins at stage + i, its backward behind that of the next stage."""
    cells = [" " * width] * ((stages + count - 1) * 3)
    begin = stages + count - 1
    for each in range(count):
        cells[stage + each] = f"F{each + 1}".ljust(width)
        place = begin + 2 * (stages - 1 - stage + count - 1 - each)
        cells[place] = f"B{each + 1}".ljust(width)
        cells[place + 1] = "." * width
    return "".join(cells)
