"""The committed table of how trainers ended by plan, and the page that shows it."""

from __future__ import annotations

import dataclasses
import fcntl
from collections.abc import Iterable, Mapping
from pathlib import Path

from trainers.row import ENDS, PLANS, Row, names
from trainers.row import read as read_row

__all__ = ["PAGE", "PATH", "Found", "page", "put", "read", "write_page"]

PATH = Path(__file__).with_name("table.tsv")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "trainers.md"
_HEAD = """# Trainers

Trainers and libraries as their packages bring them, unmodified, on two ranks of a CPU beside plain Python:
`ronde verify` compares batches, weights after each step, values read, files and printed lines, in double
precision where the trainer lets itself. Each sees one device. {count}

- *one piece*: a model's call runs on this rank's rows.
- *one piece but the loss*: so do all layers; the model also returns a loss, a sum and a count over ranks.
- *parts*: the body of this module ran on whole values, its inner modules on shards
  ([why](../concepts/boundary.md#in-parts)).
- *divided*: each rank has its part of the layers, and every row.

`make trainers ARGS=NAME` runs a row again, and makes an environment with its packages first.

"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One line of the table.

    Attributes:
        end: a word of `row.ENDS`, or "failed".
        how: which modules ran in parts, or the sentence that tells what went wrong.
        worst: the largest relative difference of parameters and values.
    """

    row: str
    plan: str
    end: str
    how: str = ""
    ranks: str
    steps: str
    dtype: str
    worst: str
    versions: str
    date: str

    @property
    def line(self) -> str:
        return "\t".join(dataclasses.astuple(self))

    @classmethod
    def parse(cls, line: str) -> Found:
        return cls(**dict(zip(cls.__slots__, line.split("\t"), strict=True)))


Place = tuple[str, str]


def read(path: Path = PATH) -> dict[Place, Found]:
    lines = path.read_text().splitlines()[1:] if path.exists() else []
    return {(each.row, each.plan): each for each in map(Found.parse, lines)}


def put(found: Found, path: Path = PATH) -> None:
    """Write one line; several processes may fill the table."""
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        known = {**read(path), (found.row, found.plan): found}
        lines = [each.line for place, each in sorted(known.items()) if place[0] in names()]
        path.write_text("\n".join(["\t".join(Found.__slots__), *lines]) + "\n")


def write_page() -> None:
    PAGE.write_text(page({name: read_row(name) for name in names()}, read()))


def page(rows: Mapping[str, Row], table: Mapping[Place, Found]) -> str:
    """The table as Markdown: a line for each row, and why some are not cut as one piece."""
    by_row = {name: [table[name, plan] for plan in PLANS if (name, plan) in table] for name in rows}
    text = _HEAD.format(count=_count(by_row.values()))
    text += "|trainer|versions|" + "|".join(f"`{plan}`" for plan in PLANS) + "|difference|date|\n"
    text += "|---" * (len(PLANS) + 4) + "|\n"
    order = sorted(rows, key=lambda name: rows[name].title.lower())
    for name in order:
        ends = [_cell(table.get((name, plan))) for plan in PLANS]
        differences = [each.worst for each in by_row[name] if each.worst not in ("", "none")]
        worst = max(differences, key=float, default="")
        date = max((each.date for each in by_row[name]), default="")
        cells = [rows[name].title, rows[name].versions, *ends, worst, date]
        text += f"|{'|'.join(cells)}|\n"
    reasons = [f"- {rows[name].title}: {rows[name].because}\n" for name in order if rows[name].because]
    starts = [f"- {rows[name].title}: {rows[name].start}\n" for name in order if rows[name].start]
    for title, lines in (("Why not one piece", reasons), ("How it is started", starts)):
        if lines:
            text += f"\n## {title}\n\n" + "".join(lines)
    return text


def _count(by_row: Iterable[list[Found]]) -> str:
    by_row = list(by_row)
    tried = [ends for ends in by_row if ends]
    same = sum(all(each.end != "failed" for each in ends) for ends in tried)
    under_ddp = [each.end for ends in by_row for each in ends if each.plan == "ddp"]
    kinds = ", ".join(f"{under_ddp.count(end)} {end}" for end in ENDS if end in under_ddp)
    return (
        f"Of {len(by_row)} rows {len(tried)} were run, and {same} have plain Python's numbers under all "
        f"plans tried; under `ddp`, {kinds}."
    )


def _cell(found: Found | None) -> str:
    if found is None:
        return "not run"
    if found.end == "failed":
        return f"**failed**: {found.how}"
    return f"parts ({found.how})" if found.end == "parts" else found.end
