"""Who waits where for whom: read from the boards of the ranks, told before and when time is over."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from ronde.errors import ADVICE_ON_DIVERGENCE
from ronde.launch.gathering import read_standings
from ronde.launch.witness import Witness
from ronde.trace.evidence import Evidence, RankEvidence
from ronde.trace.lockstep_board import State
from ronde.trace.run_directory import RunDirectory
from ronde.trace.script_line import ScriptLine

__all__ = ["Standstill", "place_in", "places"]

# A stall is to be explained within 10 s.
NOTICE_S = 8.0
LOOK_EVERY_S = 1.0
FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')


class Standstill:
    """Looks now and then whether some rank waits for another that does not come.

    Args:
        directory: the run's, where the boards are.
        timeout: seconds after which such a run is to be ended.
        witness: freezes what is known then, and explains it.
        say: prints a sentence to the user.
    """

    def __init__(
        self,
        ranks: int,
        directory: RunDirectory,
        timeout: float,
        witness: Witness,
        say: Callable[[str], object],
    ) -> None:
        self._ranks = ranks
        self._directory = directory
        self._witness = witness
        self._timeout = timeout
        self._say = say
        self._notice = min(NOTICE_S, timeout / 2)
        self._started = self._next_look = time.monotonic()
        self._said = False

    def look(self) -> str:
        """What to tell the user about a run that is to be ended; "" as long as it may go on."""
        now = time.monotonic()
        if now < self._next_look:
            return ""
        self._next_look = now + min(LOOK_EVERY_S, self._notice / 4)
        standings = read_standings(self._directory, self._ranks)
        waited = now - max(self._started, max((s.since for s in standings), default=now))
        stuck = any(standing.state is State.WAITING for standing in standings)
        if not stuck or waited < self._notice:
            self._said = False
            return ""
        if self._said and waited >= self._timeout:
            evidence, _ = self._witness.stalled()
            return (
                f"the run stood still for {self._timeout:g} s and has been ended (--timeout)\n"
                f"{places(evidence)}"
                "if they were right to take so long, give them more time: --timeout SECONDS\n"
                f"{ADVICE_ON_DIVERGENCE}"
            )
        if not self._said:
            self._said = True
            evidence, explanation = self._witness.stalled()
            lines = [] if explanation is None else explanation.lines()
            self._say(
                f"ranks have waited for {self._notice:g} s; the run is ended after {self._timeout:g} s of "
                f"this (--timeout)\n" + "\n".join([places(evidence).rstrip(), *lines])
            )
        return ""

    def forgive(self) -> None:
        """The run was stopped by the user: what was waited so far does not count."""
        self._started = time.monotonic()


def places(evidence: Evidence) -> str:
    """Where every rank is, a line each."""
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
    return "".join(lines)


def place_in(stack: str) -> str:
    """The innermost line of the script in a stack that `faulthandler` wrote; "" if there is none."""
    lines = ScriptLine()
    for match in map(FRAME.fullmatch, stack.splitlines()):
        name = lines.name(match["file"]) if match else None
        if match and name:
            return f"is at {name}:{match['line']}, in {match['function']}"
    return ""


def _last_seen(rank: RankEvidence) -> str:
    return f"was last seen at {rank.where}: {rank.what}" if rank.where else "has met nobody yet"
