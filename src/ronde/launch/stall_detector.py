"""Detects ranks that wait for one that does not come."""

from __future__ import annotations

import enum
import re
import time

from ronde.errors import ADVICE_ON_DIVERGENCE
from ronde.trace.evidence import Evidence, RankEvidence
from ronde.trace.evidence_collector import read_standings
from ronde.trace.explanation import Explanation
from ronde.trace.lockstep_board import BoardState
from ronde.trace.run_directory import RunDirectory
from ronde.trace.script_line import ScriptLine

__all__ = [
    "StallDetector",
    "StallReading",
    "notice_after",
    "place_in",
    "places",
    "told_at_last",
    "told_early",
]

# The goal: a stall is explained within 10 s.
NOTICE_S = 8.0
LOOK_EVERY_S = 1.0
FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')


class StallReading(enum.Enum):
    """State of a node's ranks: running, waiting long, or waiting too long."""

    GOES_ON = enum.auto()
    WAITS = enum.auto()
    IS_OVER = enum.auto()


def notice_after(timeout: float) -> float:
    """Return the seconds of waiting after which the user is told."""
    return min(NOTICE_S, timeout / 2)


class StallDetector:
    """Detects ranks of a node that wait for another.

    Args:
        ranks: number of ranks on this node.
        directory: the node's run directory, with the boards.
        timeout: seconds of waiting after which the run is ended.
    """

    def __init__(self, ranks: int, directory: RunDirectory, timeout: float) -> None:
        self._ranks = ranks
        self._directory = directory
        self._timeout = timeout
        self._notice = notice_after(timeout)
        self._started = self._next_look = time.monotonic()
        self._told = StallReading.GOES_ON

    def look(self) -> StallReading:
        """Return a change of state.

        `WAITS` and `IS_OVER` are returned once for each period of waiting.
        """
        now = time.monotonic()
        if now < self._next_look:
            return StallReading.GOES_ON
        self._next_look = now + min(LOOK_EVERY_S, self._notice / 4)
        standings = read_standings(self._directory, self._ranks)
        waited = now - max(self._started, max((s.since for s in standings), default=now))
        stuck = any(standing.state is BoardState.WAITING for standing in standings)
        before = self._told
        if not stuck or waited < self._notice:
            self._told = StallReading.GOES_ON
        elif before is StallReading.GOES_ON:
            self._told = StallReading.WAITS
        elif waited >= self._timeout:
            self._told = StallReading.IS_OVER
        return StallReading.GOES_ON if self._told is before else self._told

    def reset_timer(self) -> None:
        """Forget the waiting so far, because the user stopped the run."""
        self._started = time.monotonic()


def told_early(evidence: Evidence, explanation: Explanation | None, timeout: float) -> str:
    """Describe a stall that may still resolve."""
    lines = [] if explanation is None else explanation.lines()
    return (
        f"ranks have waited for {notice_after(timeout):g} s; the run is ended after {timeout:g} s of this "
        "(--timeout)\n" + "\n".join([places(evidence).rstrip(), *lines]) + " [R200]"
    )


def told_at_last(evidence: Evidence, timeout: float) -> str:
    """Describe a stall that ends the run."""
    return (
        f"the run hung for {timeout:g} s and was ended (--timeout)\n{places(evidence)}if ranks "
        f"need so long, give them more time: --timeout SECONDS\n{ADVICE_ON_DIVERGENCE} [R200]"
    )


def places(evidence: Evidence) -> str:
    """Describe the place of every rank, one line each."""
    lines: list[str] = []
    for rank in evidence.ranks:
        if rank.standing == "waiting":
            place = f"waits at {rank.where}: {rank.what}" if rank.where else "waits"
        elif rank.standing == "absent":
            place = "has not begun the script"
        elif rank.standing == "ended":
            place = "has ended"
        else:
            place = place_in(rank.stack) or _last_seen(rank)
        lines.append(f"  rank {rank.rank} {place}\n")
    for host in evidence.silent:
        first, last = host.ranks[0], host.ranks[-1]
        ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
        said = f"nothing has come from {host.name} for {host.seconds:.0f} s"
        lines.append(f"  {ranks}: {said if host.is_lost else f'{host.name} has not answered yet'}\n")
    return "".join(lines)


def place_in(stack: str) -> str:
    """Find the innermost line of the script in a stack of `faulthandler`; "" without one."""
    lines = ScriptLine()
    for match in map(FRAME.fullmatch, stack.splitlines()):
        name = lines.name(match["file"]) if match else None
        if match and name:
            return f"is at {name}:{match['line']}, in {match['function']}"
    return ""


def _last_seen(rank: RankEvidence) -> str:
    return f"was last seen at {rank.where}: {rank.what}" if rank.where else "has met nobody yet"
