"""Who waits where for whom: read from the boards of the ranks, told before and when time is over."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ronde.errors import ADVICE_ON_DIVERGENCE
from ronde.launch.rank_config import STACK_SIGNAL
from ronde.launch.rank_process import RankProcess
from ronde.trace.lockstep_board import LockstepBoard, Standing, State, board_path
from ronde.trace.run_directory import RunDirectory
from ronde.trace.script_line import ScriptLine

__all__ = ["Standstill", "read_standings", "who_waits"]

GROUPS = ("boundary", "reducer")
NOTICE_S = 60.0
LOOK_EVERY_S = 1.0
STACK_WAIT_S = 0.3
FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')


class Standstill:
    """Looks now and then whether some rank waits for another that does not come.

    Args:
        directory: the run's, where the boards are.
        timeout: seconds after which such a run is to be ended.
        say: prints a sentence to the user.
    """

    def __init__(
        self,
        ranks: Sequence[RankProcess],
        directory: RunDirectory,
        timeout: float,
        say: Callable[[str], object],
    ) -> None:
        self._ranks = {rank.rank: rank for rank in ranks}
        self._first = min(self._ranks, default=0)
        self._directory = directory
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
        standings = read_standings(self._directory, len(self._ranks), first=self._first)
        waited = now - max(self._started, max((s.since for s in standings), default=now))
        stuck = any(standing.state is State.WAITING for standing in standings)
        if not stuck or waited < self._notice:
            self._said = False
            return ""
        if self._said and waited >= self._timeout:
            return (
                f"the run stood still for {self._timeout:g} s and has been ended (--timeout)\n"
                f"{self._places(standings)}"
                "if they were right to take so long, give them more time: --timeout SECONDS\n"
                f"{ADVICE_ON_DIVERGENCE}"
            )
        if not self._said:
            self._said = True
            self._say(
                f"ranks have waited for {self._notice:g} s; the run is ended after {self._timeout:g} s of "
                f"this (--timeout)\n{self._places(standings).rstrip()}"
            )
        return ""

    def places(self) -> str:
        """Where every rank is, a line each; "" where the ranks have no boards."""
        return self._places(read_standings(self._directory, len(self._ranks), first=self._first))

    def forgive(self) -> None:
        """The run was stopped by the user: what was waited so far does not count."""
        self._started = time.monotonic()

    def _places(self, standings: Sequence[Standing]) -> str:
        busy = [standing.rank for standing in standings if standing.state is State.RUNNING]
        stacks = self._stacks(busy)
        lines: list[str] = []
        for standing in standings:
            if standing.state is State.WAITING:
                place = _waits(standing)
            elif standing.state is State.ABSENT:
                place = "has not begun the script"
            elif standing.state is State.ENDED:
                place = "has ended"
            else:
                place = stacks.get(standing.rank) or _last_seen(standing)
            lines.append(f"  rank {standing.rank} {place}\n")
        return "".join(lines)

    def _stacks(self, busy: Sequence[int]) -> dict[int, str]:
        """Where in the script each rank is that does not wait; those that answer in time."""
        paths = {rank: self._directory.stack(rank) for rank in busy}
        for rank, path in paths.items():
            with contextlib.suppress(OSError):
                os.truncate(path, 0)
                self._ranks[rank].send(STACK_SIGNAL)
        end = time.monotonic() + STACK_WAIT_S
        found: dict[int, str] = {}
        while len(found) < len(paths) and time.monotonic() < end:
            time.sleep(0.02)
            found = {rank: place for rank, path in paths.items() if (place := _place_in(path))}
        return found


def read_standings(directory: RunDirectory, ranks: int, *, first: int = 0) -> list[Standing]:
    """Where every rank of this host stands, over all its groups; nothing when the ranks have no boards.

    `first`: the number of the host's first rank, from which those of its boards count.
    """
    boards: list[Sequence[Standing]] = []
    for group in GROUPS:
        with contextlib.suppress(OSError, ValueError):
            board = LockstepBoard(board_path(directory.path, group), None, ranks)
            boards.append(board.standings())
            board.close()
    # A rank that waits in one group runs in the others, and it ended when it has left any.
    order = (State.ABSENT, State.RUNNING, State.ENDED, State.WAITING)
    found = [
        max(of_rank, key=lambda standing: (order.index(standing.state), standing.since))
        for of_rank in zip(*boards, strict=True)
    ]
    return [dataclasses.replace(standing, rank=standing.rank + first) for standing in found]


def who_waits(standings: Sequence[Standing], *, but: int) -> str:
    """The ranks that wait, apart from `but`, and where: "rank 0 waited for it at train.py:12 (...)"."""
    waiting = [each for each in standings if each.state is State.WAITING and each.rank != but]
    if not waiting:
        return ""
    names = ", ".join(str(standing.rank) for standing in waiting)
    many = f"rank{'s' if len(waiting) > 1 else ''} {names} waited for it"
    entry = waiting[0].entry
    return f"{many} at {entry.where} ({entry.what})" if entry is not None else many


def _waits(standing: Standing) -> str:
    entry = standing.entry
    return f"waits at {entry.where}: {entry.what}" if entry is not None else "waits"


def _last_seen(standing: Standing) -> str:
    entry = standing.entry
    return f"was last seen at {entry.where}: {entry.what}" if entry is not None else "has met nobody yet"


def _place_in(path: Path) -> str:
    """The innermost line of the script in a stack that `faulthandler` wrote; "" if there is none."""
    lines = ScriptLine()
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for match in map(FRAME.fullmatch, text.splitlines()):
        name = lines.name(match["file"]) if match else None
        if match and name:
            return f"is at {name}:{match['line']}, in {match['function']}"
    return ""
