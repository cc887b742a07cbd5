"""Collectives for which ranks wait now: `waiting.json` of a run on several hosts.

On one host observers read the boards of the ranks themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from ronde.trace.lockstep_board import BoardPosition, BoardState
from ronde.trace.whole_file import replace_file

__all__ = ["read_waiting", "waiting_now", "write_waiting"]

# Ranks that arrive only a little later than others are not listed.
_LEAST_S = 0.05


def waiting_now(standings: Iterable[BoardPosition], now: float) -> dict[int, str]:
    """Return each rank that waits, with its collective.

    Args:
        now: seconds by the monotonic clock of the ranks.
    """
    return {
        each.rank: each.entry.what
        for each in standings
        if each.state is BoardState.WAITING and each.entry is not None and now - each.since > _LEAST_S
    }


def write_waiting(directory: Path, waiting: Mapping[int, str]) -> None:
    """Write the waits for `ronde top`. A full disk is ignored."""
    replace_file(_path(directory), json.dumps(waiting))


def read_waiting(directory: Path) -> dict[int, str]:
    """Read the collectives that ranks wait for; {} without the file."""
    try:
        found = json.loads(_path(directory).read_text(encoding="utf-8"))
        return {int(rank): str(what) for rank, what in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _path(directory: Path) -> Path:
    return directory / "waiting.json"
