"""The table of meshes by values as Markdown, between two marks of docs/reference/plan.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from codes import without_code
from meshes.axes import MESHES, VALUES, Cell, Standing, cells

__all__ = ["PAGE", "shown", "table", "write"]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "plan.md"
# Degrees, and values of a key, by which sentences of a kind differ.
_ITEM = re.compile(r"\b[\w-]+=[\w*-]+(,[\w-]+=[\w*-]+)*")
_BEGIN, _END = "<!-- by `make meshes` -->\n", "<!-- end of what `make meshes` writes -->"


def table() -> str:
    """The table of values by meshes, equal rows and columns joined, and what a refusal says."""
    every = cells()
    counts = ", ".join(
        f"{sum(cell.standing is standing for cell in every)} {standing.value}" for standing in Standing
    )
    columns = _alike(MESHES, lambda mesh: [Cell(mesh, value).standing.value for value in VALUES])
    rows = _alike(VALUES, lambda value: [Cell(mesh, value).standing.value for mesh in MESHES])
    text = (
        f"Of {len(every)} cells: {counts}. Meshes and values with equal cells share a column and a row.\n\n"
    )
    text += f"| with | {' | '.join(map(_names, columns))} |\n"
    text += "|---" * (len(columns) + 1) + "|\n"
    for values in rows:
        signs = (Cell(meshes[0], values[0]).standing.value for meshes in columns)
        text += f"| {_names(values)} | {' | '.join(signs)} |\n"
    text += "\nWhat the refusal says, one of each kind:\n\n"
    kinds: dict[str, Cell] = {}
    for cell in every:
        if cell.standing is Standing.CONTRADICTION and len(cell.sentences) == 1:
            kinds.setdefault(_ITEM.sub("KEY=VALUE", cell.sentences[0]), cell)
    return text + "".join(f"- `{cell.plan}`: {without_code(cell.sentences[0])}\n" for cell in kinds.values())


def _alike(names: Iterable[str], signs: Callable[[str], list[str]]) -> list[list[str]]:
    """Names in groups of equal signs, in the order of the first of each group."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        groups.setdefault(tuple(signs(name)), []).append(name)
    return list(groups.values())


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def shown() -> str:
    """The table that the page has."""
    return PAGE.read_text().split(_BEGIN)[1].split(_END)[0]


def write() -> None:
    before, rest = PAGE.read_text().split(_BEGIN)
    PAGE.write_text(before + _BEGIN + table() + _END + rest.split(_END)[1])
