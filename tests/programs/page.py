"""The table of RESULTS.md: one row a program of the list, with what the runner found and when."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from programs.listing import Program

__all__ = ["NOT_RUN", "PAGE", "Row", "read", "write"]

PAGE = Path(__file__).with_name("RESULTS.md")
NOT_RUN = "not run"
_BEGIN, _END = "<!-- written by tests/programs/run.py -->", "<!-- end -->"
_HEADER = ("program", "entry", "how it ran", "ranks", "steps", "parameters and values", "printed", "date")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        entry: of which line of the list this is the result (see Program.entry).
        ran: "one piece", "in parts (...)", "replicated", or what went wrong.
        ranks: numbers of ranks it was run on.
        worst: largest relative difference of parameters and values.
        printed: of printed numbers.
    """

    program: str
    entry: str
    ran: str = NOT_RUN
    ranks: str = ""
    steps: str = ""
    worst: str = ""
    printed: str = ""
    date: str = ""

    @property
    def line(self) -> str:
        return "| " + " | ".join(dataclasses.astuple(self)) + " |"

    @classmethod
    def parse(cls, line: str) -> Row:
        return cls(**dict(zip(cls.__slots__, line[2:-2].split(" | "), strict=True)))


def read(page: Path = PAGE) -> list[Row]:
    """The rows as they stand in the page."""
    table = page.read_text().partition(_BEGIN)[2].partition(_END)[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [Row.parse(line) for line in lines[1:]]


def write(programs: Iterable[Program], found: Sequence[Row], page: Path = PAGE) -> None:
    """Put new rows into the page; a row of a line that the list has no more, or has changed, goes."""
    known = {(row.program, row.entry): row for row in (*read(page), *found)}
    rows = [
        known.get((program.name, program.entry), Row(program=program.name, entry=program.entry))
        for program in programs
    ]
    counts = Counter(row.ran.partition(" (")[0].partition(":")[0] for row in rows)
    told = ", ".join(f"{count} {ran}" for ran, count in sorted(counts.items()))
    head = [f"Of {len(rows)}: {told}.", "", "| " + " | ".join(_HEADER) + " |", "|---" * len(_HEADER) + "|"]
    before, _, rest = page.read_text().partition(_BEGIN)
    table = "\n".join([_BEGIN, "", *head, *(row.line for row in rows), "", _END])
    page.write_text(before + table + rest.partition(_END)[2])
