"""The table of meshes by values as Markdown, between two marks of docs/plan.md."""

from __future__ import annotations

import re
from pathlib import Path

from meshes.axes import MESHES, VALUES, Cell, Standing, cells

__all__ = ["PAGE", "shown", "table", "write"]

PAGE = Path(__file__).parents[2] / "docs" / "plan.md"
# Degrees, and values of a key, by which sentences of a kind differ.
_ITEM = re.compile(r"\b[\w-]+=[\w*]+(,[\w-]+=[\w*]+)*")
_BEGIN, _END = "<!-- by `make meshes` -->\n", "<!-- end of what `make meshes` writes -->"


def table() -> str:
    """A line for each value, a column for each mesh, and what is said of the cells that are not legal."""
    every = cells()
    counts = ", ".join(
        f"{sum(cell.standing is standing for cell in every)} {standing.value}" for standing in Standing
    )
    text = f"Of {len(every)} cells: {counts}.\n\n"
    text += "| with | " + " | ".join(f"`{mesh}`" for mesh in MESHES) + " |\n"
    text += "|---" * (len(MESHES) + 1) + "|\n"
    for value in VALUES:
        signs = (Cell(mesh, value).standing.value for mesh in MESHES)
        text += f"| `{value}` | {' | '.join(signs)} |\n"
    text += "\nWhat is said where it has no meaning, one of each kind:\n\n"
    kinds: dict[str, Cell] = {}
    for cell in every:
        if cell.standing is Standing.CONTRADICTION:
            kinds.setdefault(_ITEM.sub("KEY=VALUE", "; ".join(cell.sentences)), cell)
    return text + "".join(f"- `{cell.plan}`: {'; '.join(cell.sentences)}\n" for cell in kinds.values())


def shown() -> str:
    """The table that the page has."""
    return PAGE.read_text().split(_BEGIN)[1].split(_END)[0]


def write() -> None:
    before, rest = PAGE.read_text().split(_BEGIN)
    PAGE.write_text(before + _BEGIN + table() + _END + rest.split(_END)[1])
