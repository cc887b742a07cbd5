"""Command lines of ronde in documents and files, read by its own parser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from ronde.cli.app import COMMANDS

__all__ = ["understood"]


def understood(words: Sequence[str]) -> Any:
    """Parse the words behind `ronde`, and call nothing; None for an option of ronde itself."""
    row = next((row for row in COMMANDS if row.name == words[0]), None)
    if row is None:
        assert list(words) == ["--version"]
        return None
    target = row.load()
    if not isinstance(target, typer.Typer):
        function, target = target, typer.Typer(add_completion=False)
        settings = {"allow_interspersed_args": False} if row.runs_script else None
        target.command(row.name, context_settings=settings)(function)
    found: Any = typer.main.get_command(target)
    rest = list(words[1:])
    if hasattr(found, "commands"):
        found = found.commands[rest.pop(0)]
    parsed = found.make_context(row.name, rest).params
    assert parsed
    return parsed
