"""The rows of the table: a trainer as its package brings it, what runs it, and how it is expected to end."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from programs.listing import Program

__all__ = ["ENDS", "PLANS", "SCRIPTS", "Row", "names", "read"]

ROWS = Path(__file__).with_name("rows")
SCRIPTS = Path(__file__).with_name("scripts")
PLANS = ("ddp", "zero3", "tensor=2")
# Of a mesh whose ranks share all rows, "divided" is what "one piece" is of others; "refused" is a sentence of
# ronde's own, with a code.
ENDS = ("one piece", "one piece but the loss", "divided", "parts", "replicated", "refused")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One trainer.

    Attributes:
        title: what the page calls it, as Markdown.
        packages: pinned requirements, the trainer's own first; the page shows these versions.
        needs: pinned packages in place of those that the first ask for, where these exclude this torch;
            nothing else that they ask for is installed.
        expected: how it ends by plan, a word of `ENDS`.
        because: why it is not one piece under every plan, as Markdown.
        script: a file of the folder `scripts`, or with `module` what `python -m` runs.
        source: a file of a repository, run in place of a script from a checkout.
        arguments: of the script.
        data: writes what the script reads into the folder in which it runs.
        double: whether it is compared in double precision; some files of a trainer's are single by design.
        start: how it is started where it insists on processes of its own, as Markdown.
    """

    title: str
    packages: tuple[str, ...]
    needs: tuple[str, ...] = ()
    expected: Mapping[str, str]
    because: str = ""
    script: str = ""
    module: bool = False
    source: Program | None = None
    arguments: tuple[str, ...] = ()
    data: Callable[[Path], None] | None = None
    double: bool = True
    start: str = ""

    @property
    def versions(self) -> str:
        """The packages as the page shows them: `trl 1.16.0, transformers 5.23.0`."""
        return ", ".join(re.sub(r"(\[.*\])?==", " ", each) for each in self.packages)


def names() -> list[str]:
    return sorted(path.stem for path in ROWS.glob("*.py"))


def read(name: str) -> Row:
    """The row in the file of this name."""
    return importlib.import_module(f"trainers.rows.{name}").ROW
