"""The committed table of ends, and what differs from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ends.end import COLUMNS, End

__all__ = ["PATH", "difference", "read", "write"]

PATH = Path(__file__).with_name("table.tsv")


def read(path: Path = PATH) -> dict[str, End]:
    """The ends by script; none where there is no table yet."""
    lines = path.read_text().splitlines()[1:] if path.exists() else []
    return {end.script: end for end in map(End.parse, lines)}


def write(ends: Iterable[End], path: Path = PATH) -> None:
    lines = sorted(end.line for end in ends)
    path.write_text("\n".join(["\t".join(COLUMNS), *lines]) + "\n")


def difference(known: Mapping[str, End], found: End) -> list[str]:
    """The line of the table and the line found, as in a diff; nothing where they are one."""
    before = known.get(found.script)
    if before == found:
        return []
    return ([] if before is None else [f"-{before.line}"]) + [f"+{found.line}"]
