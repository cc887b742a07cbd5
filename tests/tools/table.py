"""The committed table of tools by plans, and the page that shows it."""

from __future__ import annotations

import datetime
import fcntl
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.cell import COLUMNS, DIED, REFUSED, WORKS, Cell
from tools.plans import PLANS
from tools.rows import TOOLS
from tools.scripts import SCRIPTS

__all__ = ["PAGE", "PATH", "page", "put", "read", "write_page"]

PATH = Path(__file__).with_name("table.tsv")
PAGE = Path(__file__).parents[2] / "docs" / "tools-by-plans.md"
Place = tuple[str, str, str]
_SIGNS = {WORKS: "yes", REFUSED: "refused", DIED: "**fails**"}
_HEAD = """# Tools by plans

Each tool was tried under each plan on two ranks of one host, on the simplest script with a `DataLoader` and
on one that cuts its batches by hand. Written by `make tools` on {date}: of {cells} cells {counts}.

*yes*: the run ends with the losses of one device (of exact plans), and the tool has done its work: what was
saved is resumed, the published model loads, the timeline has every rank, the proof holds. *refused*: the
command ends with exit code 2, and says what does not go together in this version, and what does. Twelve steps
are over before a checkpoint is there where ranks do not wait for one another: that script loads on at step 9.

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
    for plan in PLANS:
        text += f"| `{plan}` | {' | '.join(_sign(cells, plan, tool) for tool in TOOLS)} |\n"
    text += "\n## What is said\n\n"
    said: dict[str, list[str]] = {}
    for cell in cells.values():
        if cell.sentence:
            said.setdefault(cell.sentence, []).append(f"`{cell.plan}` and {_title(cell.tool)}")
    for sentence, places in said.items():
        text += f"- {'; '.join(dict.fromkeys(places))}: {sentence}\n"
    return text


def _title(tool: str) -> str:
    return f"`{tool}`" if tool.startswith("-") and "," not in tool else tool


def _sign(cells: Mapping[Place, Cell], plan: str, tool: str) -> str:
    """One word where both scripts end alike, else one for each."""
    ends = {script: cells[plan, tool, script].end for script in SCRIPTS}
    if len(set(ends.values())) == 1:
        return _SIGNS[next(iter(ends.values()))]
    return ", ".join(f"{_SIGNS[end]} ({script})" for script, end in ends.items())
