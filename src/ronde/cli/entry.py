"""Entry point of the command line: a fast path for runs, else the parser."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from ronde.cli.exits import exit_with

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command line (default: this process's) and exit with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    exit_with(lambda: _carried_out(words))


def _carried_out(words: list[str]) -> int | None:
    if words[:1] == ["run"]:
        from ronde.cli.plain_words import parse_plain
        from ronde.cli.run import run

        given = parse_plain(run, words[1:])
        if given is not None:
            return run(**given)
    from ronde.cli.app import carry_out

    return carry_out(words)
