"""The committed table of tools by plans, and the page that shows it."""

from __future__ import annotations

import datetime
import fcntl
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.cell import COLUMNS, DIED, REFUSED, WORKS, Cell
from tools.plans import PLANS
from tools.rows import TOOLS
from tools.scripts import SCRIPTS

__all__ = ["PAGE", "PATH", "page", "put", "read", "write_page"]

PATH = Path(__file__).with_name("table.tsv")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "tools-by-plans.md"
Place = tuple[str, str, str]
# Items of a plan, by which sentences of a kind differ.
_ITEM = re.compile(r"\b[\w-]+=[\w-]+(, [\w-]+=[\w-]+)*")
_SIGNS = {WORKS: "yes", REFUSED: "refused", DIED: "**fails**"}
_HEAD = """# Tools by plans

Each tool was tried under each plan on two ranks of one host, with a script that has a `DataLoader` and
with one that cuts its batches by hand. Written by `make tools` on {date}: of {cells} cells {counts}.

*yes*: the run ends with the losses of one device (of exact plans), and the tool has done its work: a
checkpoint is resumed, the published model loads, the timeline has every rank, the proof holds. *refused*: the
command ends with exit code 2 and names what to use instead. *loader*: yes with a `DataLoader`, else refused.
Plans with equal cells share a row.

"""


def read(path: Path = PATH) -> dict[Place, Cell]:
    lines = path.read_text().splitlines()[1:] if path.exists() else []
    return {cell.place: cell for cell in map(Cell.parse, lines)}


def put(cell: Cell, path: Path = PATH) -> None:
    """Write one cell; several processes may fill the table."""
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        cells = {**read(path), cell.place: cell}
        path.write_text("\n".join(["\t".join(COLUMNS), *_sorted(cells.values())]) + "\n")


def _sorted(cells: Iterable[Cell]) -> list[str]:
    """Lines in the order of the registries, without cells of what is no column or row any more."""
    order = [(plan, tool, script) for plan in PLANS for tool in TOOLS for script in SCRIPTS]
    by_place = {cell.place: cell for cell in cells}
    return [by_place[place].line for place in order if place in by_place]


def write_page(cells: Mapping[Place, Cell], date: str = "") -> None:
    PAGE.write_text(page(cells, date or datetime.datetime.now(datetime.timezone.utc).date().isoformat()))


def page(cells: Mapping[Place, Cell], date: str) -> str:
    """The table as Markdown: a line for each plan, and what was said where a tool is refused."""
    ends = [cell.end for cell in cells.values()]
    counts = ", ".join(f"{ends.count(end)} {end}" for end in (WORKS, REFUSED, DIED) if end in ends)
    text = _HEAD.format(date=date, cells=len(ends), counts=counts)
    text += f"| plan | {' | '.join(_title(tool) for tool in TOOLS)} |\n"
    text += "|---" * (len(TOOLS) + 1) + "|\n"
    rows: dict[tuple[str, ...], list[str]] = {}
    for plan in PLANS:
        rows.setdefault(tuple(_sign(cells, plan, tool) for tool in TOOLS), []).append(f"`{plan}`")
    for signs, plans in rows.items():
        text += f"| {', '.join(plans)} | {' | '.join(signs)} |\n"
    text += "\n## What a refused tool says\n\nOne sentence of each kind:\n\n"
    kinds: dict[str, Cell] = {}
    for cell in cells.values():
        if cell.sentence:
            kinds.setdefault(_ITEM.sub("KEY=VALUE", cell.sentence), cell)
    for cell in kinds.values():
        text += f"- `{cell.plan}` and {_title(cell.tool)}: {cell.sentence}\n"
    return text


def _title(tool: str) -> str:
    return f"`{tool}`" if tool.startswith("-") and "," not in tool else tool


def _sign(cells: Mapping[Place, Cell], plan: str, tool: str) -> str:
    """One word where both scripts end alike or hand-cut batches are refused, else one for each."""
    ends = {script: cells[plan, tool, script].end for script in SCRIPTS}
    if len(set(ends.values())) == 1:
        return _SIGNS[next(iter(ends.values()))]
    if ends == {"loader": WORKS, "bare": REFUSED}:
        return "loader"
    return ", ".join(f"{_SIGNS[end]} ({script})" for script, end in ends.items())
