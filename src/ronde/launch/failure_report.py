"""Which rank failed first, why, and what to tell the user about it: pure functions of the evidence."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ronde.errors import ADVICE_ON_DIVERGENCE
from ronde.trace.lockstep_board import Standing, State
from ronde.trace.run_directory import RunDirectory

__all__ = [
    "ErrorFile",
    "RankDeath",
    "RankFailure",
    "failure_beside",
    "first_failure",
    "read_error",
    "report",
    "shell_code",
]

Kind = Literal["script", "ronde", "diverged", "peer", "exit", "signal", "standstill"]
LOG_TAIL_LINES = 12
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ErrorFile:
    """What a rank wrote about its own failure (`rank-N.error.json`); an exit's `traceback` is its code.

    Attributes:
        advice: what a user can do about it, "" where the error says it all.
    """

    rank: int
    time: float
    kind: Literal["script", "ronde", "diverged", "peer", "exit"]
    type: str
    message: str
    traceback: str
    advice: str = ""

    def tells_the_same(self, other: ErrorFile) -> bool:
        """Both are the same error of the script, met by two ranks; or are mended alike, whatever numbers
        of processes and files are in them."""
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
class RankFailure:
    """One rank's failure: its error file, where there is one, or the way its process ended."""

    rank: int
    time: float
    kind: Kind
    exit_code: int
    error: ErrorFile | None = None

    @property
    def summary(self) -> str:
        """One sentence without a full stop: who, and what."""
        if self.error is not None and self.kind != "exit":
            # Our own errors are sentences for the user, whatever their class is called.
            named = "" if self.error.kind == "ronde" else f"{self.error.type}: "
            what = f"{named}{self.error.message}".splitlines()[0].rstrip(": ")
            if self.kind == "peer":
                return f"rank {self.rank} lost its peers ({what})"
            return f"rank {self.rank} failed: {what}"
        if self.kind == "signal":
            return f"rank {self.rank} was killed by {signal_name(self.exit_code - 128)}"
        return f"rank {self.rank} exited with code {self.exit_code}"


def shell_code(code: int) -> int:
    """An exit code as a shell shows it: 128 + n for a process that signal n ended."""
    return 128 - code if code < 0 else code


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _advice_on_signal(number: int, world_size: int) -> list[str]:
    """A line about what mostly sends this signal, and what to do; none where that is not known."""
    if number == signal.SIGKILL:
        fewer, parts = ("fewer ranks, ", "zero3,") if world_size > 1 else ("", "")
        return [
            "mostly it is the kernel that kills a rank, when memory runs out (dmesg tells); to need less: "
            f"a smaller batch, {fewer}or --plan {parts}micro-batches=4"
        ]
    if number == signal.SIGBUS:
        return [
            "mostly shared memory is full, or the disk of a mapped file: see df /dev/shm, and make it larger "
            "(docker run --shm-size=8g)"
        ]
    if number in _CRASHES:
        return [
            "compiled code has crashed, of torch or another library; to see which line of the script called "
            "it: PYTHONFAULTHANDLER=1 ronde run ..."
        ]
    return []


def read_error(path: Path) -> ErrorFile | None:
    """The error file at `path`, or None when there is none or it is not complete."""
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return ErrorFile(**fields)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def first_failure(deaths: Sequence[RankDeath], errors: Mapping[int, ErrorFile]) -> RankFailure | None:
    """The failure that came first and explains the others, or None when no rank failed.

    A rank that says of itself that it only lost a peer explains nothing. Of the others the
    earliest counts: the time in an error file, otherwise the time at which the process was gone.
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
    """The first failure that is more than what one of `signals`, sent to all ranks, brings with it.

    It ends ranks, or they leave as the script has it, and those that still waited for them lose their peers.
    But where rank 0 is left so, others have gone another way, and what it was to save may be lost.
    """
    by_signal = {death.rank for death in deaths if -death.code in signals}
    own = {rank: error for rank, error in errors.items() if error.type != "KeyboardInterrupt"}
    first = first_failure([death for death in deaths if death.rank not in by_signal], own)
    if first is None or first.kind not in ("exit", "peer"):
        return first
    main_is_left = 0 in own and own[0].kind == "peer" and not by_signal
    return first if main_is_left else None


def report(  # noqa: PLR0913 - each is evidence
    first: RankFailure,
    deaths: Sequence[RankDeath],
    errors: Mapping[int, ErrorFile],
    directory: RunDirectory,
    world_size: int,
    *,
    main_shown: bool,
    standings: Sequence[Standing] = (),
    standstill: str = "",
    explained: Sequence[str] = (),
) -> str:
    """What the user has not seen yet about the first failure; "" when the script has said it all.

    When rank 0 is shown, its stderr is the user's: an error that it met too is there already.
    `standings` is where the ranks stood last, `standstill` why the launcher has ended them, `explained` what
    evidence says of the cause.
    """
    words = _told(
        first, deaths, errors, directory, world_size,
        main_shown=main_shown, standings=standings, standstill=standstill,
    )  # fmt: skip
    if not words:
        return ""
    if first.kind != "signal":
        return "\n".join([words, *explained])
    head, *log = words.split("\n")
    return "\n".join([head, *(explained or _advice_on_signal(first.exit_code - 128, world_size)), *log])


def _told(
    first: RankFailure,
    deaths: Sequence[RankDeath],
    errors: Mapping[int, ErrorFile],
    directory: RunDirectory,
    world_size: int,
    *,
    main_shown: bool,
    standings: Sequence[Standing],
    standstill: str,
) -> str:
    where = f"logs of all ranks: {directory.path}"
    if not directory.path.exists():
        gone = "the run directory was removed while ranks wrote to it; keep it until the run has ended"
        return f"{first.summary}; {gone}: {directory.path}"
    if first.kind == "exit" and not shutil.disk_usage(directory.path).free:
        full = "the disk of the run directory is full; free some space, or take another by --run-dir DIR"
        return f"{first.summary}; {full}: {directory.path}"
    if standstill:
        return f"{standstill}\n{where}"
    if first.kind == "diverged" and first.error is not None:
        return f"{first.error.message}\n{where}"
    early = _left_early(first, deaths, standings)
    if early:
        return f"{early}; {where}\n{ADVICE_ON_DIVERGENCE}"
    shown = errors.get(0) if main_shown else None
    told = (
        first.error is not None
        and first.kind not in ("exit", "peer")  # which nobody has shown
        and shown is not None
        and shown.tells_the_same(first.error)
    )
    same_exit = main_shown and first.kind == "exit" and _code(deaths, errors, 0) == first.exit_code
    if (told and world_size == 1) or same_exit:
        return ""
    if told:
        others = sum(
            1 for rank, error in errors.items() if rank != 0 and shown and shown.tells_the_same(error)
        )
        alike = f" (so did {others} more)" if others else ""
        what = "error" if first.kind == "ronde" else "traceback"
        return f"rank 0 failed{alike}, its {what} is above; {where}"
    lines = [
        f"{first.summary}; {where}"
        if world_size > 1
        else f"{first.summary}; log: {directory.log(first.rank)}"
    ]
    if first.error is not None and first.kind == "ronde":
        lines += first.error.message.splitlines()[1:]
    elif first.error is not None and first.kind != "exit":
        lines += first.error.traceback.splitlines()
    else:
        if first.rank != 0 or not main_shown:
            tail = _tail(directory.log(first.rank))
            lines += [f"the last lines of {directory.log(first.rank).name}:", *tail] if tail else []
    return "\n".join(lines)


def _left_early(first: RankFailure, deaths: Sequence[RankDeath], standings: Sequence[Standing]) -> str:
    """Who ended while others waited, where that is what happened; "" where it is not."""
    if first.kind == "exit":
        waiting = _who_waits(standings, but=first.rank)
        return f"{first.summary} while {waiting}" if waiting else ""
    if first.kind != "peer":
        return ""
    ended = {death.rank for death in deaths if death.code == 0}
    ended |= {standing.rank for standing in standings if standing.state is State.ENDED}
    if not ended:
        return ""
    rank = min(ended)
    others = _who_waits(standings, but=rank) or "others waited"
    return f"rank {rank} came to the end of the script while {others}"


def _who_waits(standings: Sequence[Standing], *, but: int) -> str:
    """The ranks that wait, apart from `but`, and where: "rank 0 waited for it at train.py:12 (...)"."""
    waiting = [each for each in standings if each.state is State.WAITING and each.rank != but]
    if not waiting:
        return ""
    names = ", ".join(str(standing.rank) for standing in waiting)
    many = f"rank{'s' if len(waiting) > 1 else ''} {names} waited for it"
    entry = waiting[0].entry
    return f"{many} at {entry.where} ({entry.what})" if entry is not None else many


def _exit_code(error: ErrorFile, of_process: int) -> int:
    """The code of a rank that left word; its process may have been ended before it came to its exit."""
    return int(error.traceback) if error.kind == "exit" else shell_code(of_process) or 1


def _code(deaths: Sequence[RankDeath], errors: Mapping[int, ErrorFile], rank: int) -> int | None:
    if rank in errors and errors[rank].kind == "exit":
        return int(errors[rank].traceback)
    return next((death.code for death in deaths if death.rank == rank), None)


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - 8192))
            return stream.read().decode("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:]
    except OSError:
        return []
