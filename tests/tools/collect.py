"""Fills the cells of the table: tools that stand together in one run are tried together first."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence

from tools.cell import WORKS, Cell
from tools.rows import APART, TOGETHER
from tools.trial import Died, Refused, Trial

__all__ = ["cells"]


def cells(trial: Trial, tools: Sequence[str]) -> Iterator[Cell]:
    """How each of these tools ends."""
    together = [tool for tool in tools if tool in TOGETHER]
    if together:
        yield from _together(trial, together)
    for tool in tools:
        if tool not in TOGETHER:
            yield _cell(trial, tool, _end(functools.partial(APART[tool], trial)))


def _together(trial: Trial, tools: Sequence[str]) -> Iterator[Cell]:
    """All in one run; where that does not end well, those that its error names apart from the others."""
    problem = _end(functools.partial(_run, trial, tools))
    if problem is None or len(tools) == 1:
        yield from (_cell(trial, tool, problem) for tool in tools)
        return
    named = [tool for tool in tools if re.search(rf"(?<!\S){tool}\b", str(problem))]
    first = named if 0 < len(named) < len(tools) else tools[: len(tools) // 2]
    for part in (first, [tool for tool in tools if tool not in first]):
        yield from _together(trial, part)


def _run(trial: Trial, tools: Sequence[str]) -> None:
    place = trial.place()
    options = [option for tool in tools for option in TOGETHER[tool].options]
    script = "train" if any(TOGETHER[tool].script == "train" for tool in tools) else "train.py"
    ran = trial.run(place, *options, script=script)
    trial.require_right(ran)
    for tool in tools:
        try:
            TOGETHER[tool].check(trial, place, ran)
        except (Died, OSError, ValueError, KeyError) as error:
            raise Died(f"{tool} {error}") from None


def _end(tried: Callable[[], object]) -> Refused | Died | None:
    try:
        tried()
    except (Refused, Died) as problem:
        return problem
    return None


def _cell(trial: Trial, tool: str, problem: Refused | Died | None) -> Cell:
    place = trial.column.name, tool, trial.script
    if problem is None:
        return Cell(*place, WORKS)
    sentence = str(problem)
    if isinstance(problem, Refused):
        return Cell.refused(*place, sentence)
    return Cell.died(*place, sentence)
