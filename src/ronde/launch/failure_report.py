"""The report of a failure for the user, as pure functions of the evidence."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from ronde.errors import ADVICE_ON_DIVERGENCE
from ronde.launch.failure import ErrorFile, RankExits, RankFailure
from ronde.trace.lockstep_board import BoardPosition, BoardState
from ronde.trace.run_directory import RunDirectory

__all__ = ["report"]

LOG_TAIL_LINES = 12
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


def report(
    first: RankFailure,
    ends: RankExits,
    directory: RunDirectory,
    world_size: int,
    *,
    main_shown: bool,
    standings: Sequence[BoardPosition] = (),
    explained: Sequence[str] = (),
) -> str:
    """Report the first failure to the user; "" if the script has printed it.

    If rank 0's output is shown, its stderr is the user's, so an error that rank 0 had too is visible already.

    Args:
        standings: last known places of the ranks.
        explained: lines about the cause; without them the usual sender of a signal is named.
    """
    head, *more = _told(first, ends, directory, world_size, main_shown=main_shown, standings=standings) or [
        ""
    ]
    if not head:
        return ""
    if first.kind != "signal":
        return "\n".join([head, *more, *explained])
    return "\n".join([head, *(explained or _advice_on_signal(first.exit_code - 128, world_size)), *more])


def _told(
    first: RankFailure,
    ends: RankExits,
    directory: RunDirectory,
    world_size: int,
    *,
    main_shown: bool,
    standings: Sequence[BoardPosition],
) -> Sequence[str]:
    """Return the lines of the report, the failure first; () if nothing is new."""
    where = f"logs of all ranks: {directory.path}"
    if not directory.path.exists():
        gone = "the run directory was removed while ranks wrote to it; keep it until the run has ended [R182]"
        return (f"{first.summary}; {gone}: {directory.path}",)
    if ends.abort is not None and first.kind == ends.abort.kind:
        return (ends.abort.said, where)
    if first.kind == "exit" and not shutil.disk_usage(directory.path).free:
        full = (
            "the disk of the run directory is full; free some space, or take another by --run-dir DIR [R182]"
        )
        return (f"{first.summary}; {full}: {directory.path}",)
    if first.kind == "diverged" and first.error is not None:
        return (first.error.message, where)
    early = _left_early(first, ends, standings)
    if early:
        return (f"{early}; {where}", ADVICE_ON_DIVERGENCE)
    errors = ends.errors
    shown = errors.get(0) if main_shown else None
    told = (
        first.error is not None
        and first.kind not in ("exit", "peer")  # output that was not shown
        and shown is not None
        and shown.tells_the_same(first.error)
    )
    same_exit = main_shown and first.kind == "exit" and _code(ends, 0) == first.exit_code
    if (told and world_size == 1) or same_exit:
        return ()
    if told:
        others = sum(
            1 for rank, error in errors.items() if rank != 0 and shown and shown.tells_the_same(error)
        )
        alike = f" (so did {others} more)" if others else ""
        what = "error" if first.kind == "ronde" else "traceback"
        return (f"rank 0 failed{alike}, its {what} is above; {where}",)
    log = directory.log(first.rank)
    head = f"{first.summary}; {where}" if world_size > 1 else f"{first.summary}; log: {log}"
    return (head, *_words_of(first.error, first.kind), *_end_of_log(first, log, main_shown=main_shown))


def _words_of(error: ErrorFile | None, kind: str) -> Sequence[str]:
    """Return the lines of an error file that the summary does not tell."""
    if error is None or kind == "exit":
        return ()
    return error.message.splitlines()[1:] if kind in ("ronde", "peer") else error.traceback.splitlines()


def _end_of_log(first: RankFailure, log: Path, *, main_shown: bool) -> Sequence[str]:
    """Return the end of the log of a rank without an error file."""
    if (first.error is not None and first.kind != "exit") or (first.rank == 0 and main_shown):
        return ()
    tail = _tail(log)
    return (f"the last lines of {log.name}:", *tail) if tail else ()


def _advice_on_signal(number: int, world_size: int) -> Sequence[str]:
    """Return the usual sender of a signal and the fix; () for other signals."""
    if number == signal.SIGKILL:
        fewer, parts = ("fewer ranks, ", "zero3,") if world_size > 1 else ("", "")
        return (
            "usually the kernel kills a rank when memory runs out (see dmesg); to need less memory: a "
            f"smaller batch, {fewer}or --plan {parts}micro-batches=4 [R195]",
        )
    if number == signal.SIGBUS:
        return (
            "usually shared memory is full, or the disk of a mapped file: check df /dev/shm, and make it "
            "larger (docker run --shm-size=8g) [R196]",
        )
    if number in _CRASHES:
        return (
            "compiled code has crashed, of torch or another library; to see the line of the script that "
            "called it: PYTHONFAULTHANDLER=1 ronde run ... [R197]",
        )
    return ()


def _left_early(first: RankFailure, ends: RankExits, standings: Sequence[BoardPosition]) -> str:
    """Describe the rank that ended while others waited; "" for other failures."""
    if first.kind == "exit":
        waiting = _who_waits(standings, but=first.rank)
        return f"{first.summary} while {waiting}" if waiting else ""
    if first.kind != "peer":
        return ""
    ended = {death.rank for death in ends.deaths if death.code == 0}
    ended |= {standing.rank for standing in standings if standing.state is BoardState.ENDED}
    if not ended:
        return ""
    rank = min(ended)
    others = _who_waits(standings, but=rank) or "others waited"
    return f"rank {rank} came to the end of the script while {others} [R190]"


def _who_waits(standings: Sequence[BoardPosition], *, but: int) -> str:
    """Describe the waiting ranks but one: "rank 0 waited for it at train.py:12 (...)"."""
    waiting = [each for each in standings if each.state is BoardState.WAITING and each.rank != but]
    if not waiting:
        return ""
    names = ", ".join(str(standing.rank) for standing in waiting)
    many = f"rank{'s' if len(waiting) > 1 else ''} {names} waited for it"
    entry = waiting[0].entry
    return f"{many} at {entry.where} ({entry.what})" if entry is not None else many


def _code(ends: RankExits, rank: int) -> int | None:
    error = ends.errors.get(rank)
    return int(error.traceback) if error is not None and error.kind == "exit" else ends.codes.get(rank)


def _tail(log: Path) -> Sequence[str]:
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - 8192))
            return stream.read().decode("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:]
    except OSError:
        return ()
