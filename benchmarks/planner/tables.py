"""Public tables of measurements; sources are in facts/README.md."""

from __future__ import annotations

import csv
from pathlib import Path

__all__ = ["FACTS", "read_table"]

FACTS = Path(__file__).parent / "facts"
"""The folder of tables."""


def read_table(name: str) -> list[dict[str, str]]:
    """Return the rows of `facts/NAME.csv`, by column."""
    with (FACTS / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
