"""The first failure of a run and its exit code, from all ends."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

__all__ = [
    "ENDING",
    "Abort",
    "ErrorFile",
    "RankDeath",
    "RankExits",
    "RankFailure",
    "failure_beside",
    "first_failure",
    "read_error",
    "shell_code",
    "signal_name",
]

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

AbortKind = Literal["standstill", "server", "host", "store", "refused", "gone"]
Kind = Literal["script", "ronde", "diverged", "peer", "exit", "signal"] | AbortKind


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ErrorFile:
    """The error file of a rank, `rank-N.error.json`; an exit's `traceback` is its code.

    Attributes:
        advice: the fix for the user; "" where the error needs none.
        paths: number, line of the script and operation there, for each known rank that diverged.
    """

    rank: int
    time: float
    kind: Literal["script", "ronde", "diverged", "peer", "exit"]
    type: str
    message: str
    traceback: str
    advice: str = ""
    paths: tuple[tuple[int, str, str], ...] = ()

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> ErrorFile:
        """Invert `dataclasses.asdict`, also after JSON, which has no tuples."""
        paths = tuple((int(rank), str(where), str(what)) for rank, where, what in fields.get("paths", ()))
        return cls(**{**fields, "paths": paths})

    def tells_the_same(self, other: ErrorFile) -> bool:
        """Return whether two ranks had the same error, or errors with the same advice."""
        if self.advice and self.advice == other.advice:
            return True
        return (self.kind, self.type, self.message) == (other.kind, other.type, other.message)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankDeath:
    """The end of a rank process that was not ended by the launcher.

    `code` is as `subprocess` has it: an exit code, or minus the number of the signal.
    """

    rank: int
    time: float
    code: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Abort:
    """Reason for which the launcher itself ends a run.

    Attributes:
        kind: ranks hang, a parameter server is lost, a host is lost, the store has ended, a host refuses its
            part, or a rank of another launcher has disappeared.
        said: message for the user.
        rank: the first rank of the host concerned; 0 without one.
    """

    kind: AbortKind
    time: float
    said: str
    rank: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankFailure:
    """A rank's failure: its error file, or the way its process ended.

    Attributes:
        host: name of the rank's host, where there are several.
        said: reason for which the launcher itself ended the run; "" if it did not.
    """

    rank: int
    time: float
    kind: Kind
    exit_code: int
    error: ErrorFile | None = None
    host: str = ""
    said: str = ""

    @property
    def summary(self) -> str:
        """One sentence without a full stop that names the rank and the failure."""
        if self.said:
            return self.said.splitlines()[0]
        who = f"rank {self.rank} on {self.host}" if self.host else f"rank {self.rank}"
        if self.error is not None and self.kind != "exit":
            # ronde's own errors are complete sentences, so the class is left out.
            named = "" if self.error.kind == "ronde" else f"{self.error.type}: "
            what = f"{named}{self.error.message}".splitlines()[0].rstrip(": ")
            if self.kind == "peer":
                return f"{who} lost its peers ({what})"
            return f"{who} failed: {what}"
        if self.kind == "signal":
            return f"{who} was killed by {signal_name(self.exit_code - 128)}"
        return f"{who} exited with code {self.exit_code}"


class RankExits:
    """Record of the ends of a run's ranks, on this node or on all.

    Attributes:
        deaths: ends of processes, in the order in which they were reported.
        errors: error files of ranks, by rank.
        interrupted_by: the signal by which the user has ended the run.
        killed_by_user: whether the user has sent it a second time.
        abort: reason for which the launcher itself ends the run.
    """

    def __init__(self, first_rank: int = 0) -> None:
        self.deaths: list[RankDeath] = []
        self.errors: dict[int, ErrorFile] = {}
        self.interrupted_by: int | None = None
        self.killed_by_user = False
        self.abort: Abort | None = None
        self._first_rank = first_rank

    @property
    def has_failed(self) -> bool:
        """Return whether some rank has failed, or lost a peer."""
        return bool(self.errors) or self.abort is not None or any(death.code != 0 for death in self.deaths)

    @property
    def codes(self) -> dict[int, int]:
        """Exit codes of ended ranks, as `subprocess` has them."""
        return {death.rank: death.code for death in self.deaths}

    def failure(self) -> RankFailure | None:
        """The first failure; None without one, or for the user's own signal."""
        if self.killed_by_user:
            return None
        if self.interrupted_by is not None:
            return failure_beside(ENDING, self.deaths, self.errors)
        first = first_failure(self.deaths, self.errors)
        abort = self.abort
        if abort is not None and (first is None or first.kind == "peer" or abort.time < first.time):
            return RankFailure(
                rank=abort.rank, time=abort.time, kind=abort.kind, exit_code=1, said=abort.said
            )
        return first

    def exit_code(self) -> int:
        if self.interrupted_by is not None:
            return self._interrupted_code(self.interrupted_by)
        failure = self.failure()
        return failure.exit_code if failure is not None else 0

    @property
    def ended_by_signal(self) -> int | None:
        """The signal of a batch system or an administrator that ended the run."""
        number = self.interrupted_by
        asked = number in (signal.SIGTERM, signal.SIGHUP)
        return number if number is not None and asked and self.exit_code() == 128 + number else None

    def _interrupted_code(self, number: int) -> int:
        """Return the first rank's own code, or the shell's code for the signal."""
        main = next((death for death in self.deaths if death.rank == self._first_rank), None)
        error = self.errors.get(self._first_rank)
        unhandled = error is not None and (error.kind == "peer" or error.type == "KeyboardInterrupt")
        if self.killed_by_user or main is None or unhandled:
            return 128 + number
        return shell_code(main.code)


def shell_code(code: int) -> int:
    """Convert an exit code to a shell's: 128 + n for signal n."""
    return 128 - code if code < 0 else code


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read_error(path: Path) -> ErrorFile | None:
    """Read the error file at `path`; None when it is missing or incomplete."""
    try:
        return ErrorFile.from_fields(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def first_failure(deaths: Sequence[RankDeath], errors: Mapping[int, ErrorFile]) -> RankFailure | None:
    """Return the failure that explains the others, or None.

    A rank that only lost a peer explains nothing. Of the others the earliest counts, by the time in the error
    file, or else by the time at which the process ended.
    """
    codes = {death.rank: death.code for death in deaths}
    failures = [
        RankFailure(
            rank=error.rank,
            time=error.time,
            kind=error.kind,
            exit_code=_exit_code(error, codes.get(error.rank, 0)),
            error=error,
        )
        for error in errors.values()
    ]
    for death in deaths:
        if death.code != 0 and death.rank not in errors:
            kind: Kind = "signal" if death.code < 0 else "exit"
            failures.append(
                RankFailure(rank=death.rank, time=death.time, kind=kind, exit_code=shell_code(death.code))
            )
    return min(failures, key=lambda failure: (failure.kind == "peer", failure.time), default=None)


def failure_beside(
    signals: Collection[int], deaths: Sequence[RankDeath], errors: Mapping[int, ErrorFile]
) -> RankFailure | None:
    """Return the first failure other than the effects of a signal to all ranks.

    A signal ends ranks directly or through the script, and ranks that still wait for them then lose their
    peers. If rank 0 loses its peers, the others took another path, and rank 0 may have failed to save.
    """
    by_signal = {death.rank for death in deaths if -death.code in signals}
    own = {rank: error for rank, error in errors.items() if error.type != "KeyboardInterrupt"}
    first = first_failure([death for death in deaths if death.rank not in by_signal], own)
    if first is None or first.kind not in ("exit", "peer"):
        return first
    main_is_left = 0 in own and own[0].kind == "peer" and not by_signal
    return first if main_is_left else None


def _exit_code(error: ErrorFile, of_process: int) -> int:
    """Return the exit code of a rank with an error file."""
    return int(error.traceback) if error.kind == "exit" else shell_code(of_process) or 1
