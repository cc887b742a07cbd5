"""How one tool ends under one plan."""

from __future__ import annotations

import dataclasses
import re

from codes import without_code

__all__ = ["COLUMNS", "DIED", "REFUSED", "WORKS", "Cell"]

COLUMNS = ("plan", "tool", "script", "end", "sentence")
WORKS, REFUSED, DIED = "works", "refused", "died"
# What differs between runs and machines: paths and numbers by themselves.
_PATH = re.compile(r"(?<![\w/.])(?:/[\w.@+-]+){2,}/?")
_NUMBER = re.compile(r"(?<![\w.=:-])\d+(?:\.\d+)?(?![\w.]*[A-Za-z_=])")
_LONGEST = 300


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One line of the table.

    Attributes:
        plan, tool, script: the column, the row, and "loader" or "bare".
        end: "works", "refused" by a sentence that names both settings, or "died".
        sentence: the refusal, or what was wrong; "" where it works.
    """

    plan: str
    tool: str
    script: str
    end: str
    sentence: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        return self.plan, self.tool, self.script

    @property
    def line(self) -> str:
        return "\t".join((*self.place, self.end, self.sentence))

    @classmethod
    def parse(cls, line: str) -> Cell:
        return cls(*line.split("\t"))

    @classmethod
    def refused(cls, plan: str, tool: str, script: str, sentence: str) -> Cell:
        return cls(plan, tool, script, REFUSED, _stable(sentence))

    @classmethod
    def died(cls, plan: str, tool: str, script: str, sentence: str) -> Cell:
        return cls(plan, tool, script, DIED, _stable(sentence))


def _stable(sentence: str) -> str:
    """On one line, without paths and numbers, and not longer than tells."""
    text = _NUMBER.sub("N", _PATH.sub("PATH", " ".join(without_code(sentence).split())))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3].rstrip() + "..."
