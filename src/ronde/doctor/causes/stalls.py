"""Causes of a stall: states of the late rank in Linux and its stack."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ronde.doctor.stacks import StackFrame, inside, main_frames, script_place
from ronde.trace.evidence import Evidence, ProcessFacts, RankEvidence
from ronde.trace.explanation import Explanation

__all__ = [
    "computes",
    "died",
    "ended_early",
    "interpreter_held",
    "loader_frozen",
    "loader_stopped",
    "not_begun",
    "sleeps",
    "stopped",
    "uninterruptible",
    "waits_for_data",
    "waits_for_lock",
    "waits_for_others",
]

# A heartbeat comes twice a second, or later on an overloaded host.
_SILENT_S = 2.5
# If the last collective is more recent than this, the run is not stalled.
_GOES_ON_S = 3.0
# Shares of a core: an idle thread uses less than the first, a busy one more than the second.
_IDLE, _WORKS = 0.05, 0.3
# Kernel functions in which a process sleeps, and system calls of x86-64 in case these are hidden.
_LOCK = re.compile(r"futex")
_SLEEP = re.compile(r"nanosleep|^do_sigtimedwait|^sys_pause|pause$|sigsuspend")
_LOCK_CALLS, _SLEEP_CALLS = (202,), (35, 230, 34, 128)
_OUTSIDE = {
    "a socket, or another program's answer": (
        re.compile(r"skb|sk_wait|inet_|unix_stream|wait_woken|tcp_"),
        (45, 47, 42, 43, 288),
    ),
    "a pipe": (re.compile(r"pipe"), ()),
    "a lock on a file": (re.compile(r"lock_inode|flock"), (73,)),
    "a process that it has started": (re.compile(r"do_wait"), (61, 247)),
    "something that it polls": (re.compile(r"poll|ep_|select"), (7, 271, 23, 270, 232, 281)),
}
_LOADER = "torch/utils/data/dataloader.py"


def stopped(evidence: Evidence) -> Explanation | None:
    """Explain a rank in state T: it was stopped, and not continued."""
    for rank in evidence.ranks:
        if rank.process.state in ("T", "t") and rank.code is None:
            return Explanation(
                cause="stopped",
                rank=rank.rank,
                summary=f"rank {rank.rank} is stopped (SIGSTOP, a debugger, or a control group's freezer)",
                evidence=(f"process {rank.process.pid} is in state {rank.process.state}", *_seen_at(rank)),
                fix=f"kill -CONT {rank.process.pid}",
            )
    return None


def died(evidence: Evidence) -> Explanation | None:
    """Explain a rank that disappeared without an error, unnoticed by its launcher."""
    if evidence.failure is not None or not any(rank.is_alive or rank.summary for rank in evidence.ranks):
        return None
    for rank in evidence.ranks:
        gone = rank.process.state in ("", "Z", "X") and rank.code is None and rank.summary is None
        if gone and rank.standing in ("running", "waiting"):
            return Explanation(
                cause="died",
                rank=rank.rank,
                summary=f"rank {rank.rank} is gone, and left no word",
                evidence=_seen_at(rank),
                fix=f"see the end of its log, {evidence.run_directory}/rank-{rank.rank}.log, and dmesg",
            )
    return None


def ended_early(evidence: Evidence) -> Explanation | None:
    """Explain a rank at the end of the script, for which others wait."""
    if evidence.failure is not None and evidence.failure.kind not in ("peer", "standstill"):
        return None
    waiting = [rank for rank in evidence.ranks if _waits(rank)]
    done = [rank for rank in evidence.ranks if rank.standing == "ended" or rank.code == 0]
    if not waiting or not done:
        return None
    rank, other = done[0], waiting[0]
    at = (
        f"rank {other.rank} waits at {other.where}: {other.what}"
        if other.where
        else f"rank {other.rank} waits"
    )
    return Explanation(
        cause="ended-early",
        rank=rank.rank,
        summary=f"rank {rank.rank} has come to the end of the script, and others still wait for it",
        evidence=(at, *_steps(evidence)),
        fix="what is looped over has fewer items there: take the number from a value that all ranks share",
        told=evidence.failure is not None,
    )


def interpreter_held(evidence: Evidence) -> Explanation | None:
    """Explain code that holds the GIL: heartbeats stop, the process does not."""
    for rank in _late(evidence):
        process = rank.process
        if rank.beat is None or rank.beat < _SILENT_S or process.state in ("D", "T", "t"):
            continue
        doing = "computes" if _is_busy(process) else "sleeps"
        return Explanation(
            cause="interpreter-held",
            rank=rank.rank,
            summary=f"code in C on rank {rank.rank} {doing} and keeps the interpreter to itself (GIL)",
            evidence=(f"its thread has not run for {rank.beat:.0f} s", *_at(rank)),
            fix="the line above calls it: give it less at once, or a library that releases the interpreter",
        )
    return None


def uninterruptible(evidence: Evidence) -> Explanation | None:
    """Explain a rank in state D, usually a file system that does not answer."""
    for rank in _late(evidence):
        if rank.process.state == "D":
            waits = rank.process.waits_in
            return Explanation(
                cause="uninterruptible",
                rank=rank.rank,
                summary=f"rank {rank.rank} waits in the kernel and cannot be interrupted, mostly for a disk",
                evidence=(f"state D{f' in {waits}' if waits else ''}", *_at(rank)),
                fix="see mount and dmesg for the file system that does not answer",
            )
    return None


def loader_stopped(evidence: Evidence) -> Explanation | None:
    """Explain a loader worker that is stopped."""
    for rank in evidence.ranks:
        for child in rank.children:
            if child.state in ("T", "t"):
                return Explanation(
                    cause="loader-stopped",
                    rank=rank.rank,
                    summary=f"a process that rank {rank.rank} has started (a loader worker?) is stopped",
                    evidence=(f"process {child.pid} ({child.name}) is in state {child.state}", *_at(rank)),
                    fix=f"kill -CONT {child.pid}",
                )
    return None


def loader_frozen(evidence: Evidence) -> Explanation | None:
    """Explain a wait for a loader with idle workers."""
    for rank in _late(evidence):
        if not inside(main_frames(rank.stack), _LOADER) or not rank.children or not _is_idle(rank.process):
            continue
        asleep = [child for child in rank.children if child.state == "S" and (child.busy or 0) < _IDLE]
        if len(asleep) < len(rank.children):
            continue
        locked = [child for child in asleep if _in(child, _LOCK, _LOCK_CALLS)]
        dozing = [child for child in asleep if _in(child, _SLEEP, _SLEEP_CALLS)]
        if not locked and not dozing:
            continue
        first = (locked or dozing)[0]
        what = "waits for a lock that nobody gives back" if locked else "sleeps"
        return Explanation(
            cause="loader-frozen",
            rank=rank.rank,
            summary=f"rank {rank.rank} waits for its loader, and a worker {what}",
            evidence=(
                f"process {first.pid} ({first.name}) in {first.waits_in or 'a system call'}",
                *_at(rank),
            ),
            fix='DataLoader(..., multiprocessing_context="spawn"): a fork copies locks that threads hold; '
            "or look at what __getitem__ waits for (num_workers=0 shows it)",
        )
    return None


def not_begun(evidence: Evidence) -> Explanation | None:
    """Explain a rank that has not begun the script."""
    if not any(_waits(rank) for rank in evidence.ranks):
        return None
    for rank in _late(evidence):
        if rank.standing == "absent":
            return Explanation(
                cause="not-begun",
                rank=rank.rank,
                summary=f"rank {rank.rank} has not begun the script",
                evidence=_at(rank),
                fix="it imports, or reads its interpreter from a slow disk; see its log",
            )
    return None


def waits_for_lock(evidence: Evidence) -> Explanation | None:
    """Explain a wait for a lock of the script that nothing releases."""
    for rank in _late(evidence):
        frames = main_frames(rank.stack)
        if not _is_idle(rank.process) or not _in(rank.process, _LOCK, _LOCK_CALLS) or inside(frames, _LOADER):
            continue
        joins = inside(frames[:3], "threading.py", "join", "_wait_for_tstate_lock", "_shutdown")
        queue = inside(frames[:3], "queue.py")
        what = (
            "a thread to end"
            if joins
            else "a queue that nobody fills"
            if queue
            else "a lock that nobody gives back"
        )
        return Explanation(
            cause="lock",
            rank=rank.rank,
            summary=f"rank {rank.rank} waits for {what}",
            evidence=(*_at(rank), "its stack in evidence/ shows what its other threads do"),
            fix="who has it may wait for this rank in turn: take locks in one order, and none twice; "
            "acquire(timeout=...) shows where",
        )
    return None


def sleeps(evidence: Evidence) -> Explanation | None:
    """Explain a rank that sleeps."""
    for rank in _late(evidence):
        if _is_idle(rank.process) and _in(rank.process, _SLEEP, _SLEEP_CALLS):
            return Explanation(
                cause="sleeps",
                rank=rank.rank,
                summary=f"rank {rank.rank} sleeps (time.sleep, or a wait for a signal)",
                evidence=_at(rank),
                fix="take the sleep out, or let every rank sleep: it must not depend on the rank",
            )
    return None


def waits_for_others(evidence: Evidence) -> Explanation | None:
    """Explain a wait for a socket, a pipe or another process."""
    for rank in _late(evidence):
        frames = main_frames(rank.stack)
        if not _is_idle(rank.process) or inside(frames, _LOADER):
            continue
        for what, (place, calls) in _OUTSIDE.items():
            if _in(rank.process, place, calls):
                return Explanation(
                    cause="waits-outside",
                    rank=rank.rank,
                    summary=f"rank {rank.rank} waits for {what}",
                    evidence=(
                        *((f"in {rank.process.waits_in}",) if rank.process.waits_in else ()),
                        *_at(rank),
                    ),
                    fix="see whether what it waits for is alive; give the call a timeout",
                )
    return None


def waits_for_data(evidence: Evidence) -> Explanation | None:
    """Explain a wait for a loader with busy workers."""
    for rank in _late(evidence):
        if inside(main_frames(rank.stack), _LOADER):
            busy = [child for child in rank.children if (child.busy or 0) > _WORKS]
            workers = (
                f"{len(busy)} of {len(rank.children)} workers compute"
                if rank.children
                else "it has no workers"
            )
            return Explanation(
                cause="slow-loader",
                rank=rank.rank,
                summary=f"rank {rank.rank} waits for the next batch of its loader",
                evidence=(workers, *_at(rank)),
                fix="more loader workers (num_workers), or less to do for each sample",
            )
    return None


def computes(evidence: Evidence) -> Explanation | None:
    """Explain a rank that computes for long."""
    for rank in _late(evidence):
        others_wait = any(_waits(each) for each in evidence.ranks)
        if others_wait and _is_busy(rank.process):
            return Explanation(
                cause="computes",
                rank=rank.rank,
                summary=f"rank {rank.rank} computes, while others wait for it",
                evidence=(f"its main thread uses {rank.process.cpu or 0:.0%} of a core", *_at(rank)),
                fix="if a loop has no end there, correct its condition; if it is right to take so long, wait",
            )
    return None


def _late(evidence: Evidence) -> Sequence[RankEvidence]:
    """Return the live ranks that do not wait for others, in a stalled run."""
    if evidence.failure is not None and evidence.failure.kind not in ("peer", "standstill"):
        return ()
    alive = [rank for rank in evidence.ranks if rank.is_alive and rank.standing != "ended"]
    # One with an error has reported it, and waits to be ended.
    late = [rank for rank in alive if not _waits(rank) and rank.error is None]
    if evidence.reason == "failure" and len(late) == len(evidence.ranks):
        return ()
    moved = any(rank.standing and rank.stood < _GOES_ON_S for rank in alive)
    return () if evidence.reason == "asked" and moved else late


def _waits(rank: RankEvidence) -> bool:
    """Return whether a rank waits for others, by its board or its stack."""
    if rank.standing:
        return rank.standing == "waiting" and rank.is_alive
    return rank.is_alive and inside(main_frames(rank.stack), "torch/distributed/distributed_c10d.py")


def _is_idle(process: ProcessFacts) -> bool:
    return process.state == "S" and (process.cpu or 0.0) < _IDLE


def _is_busy(process: ProcessFacts) -> bool:
    """Return whether a process runs, or would if it had a core."""
    return process.state == "R" or (process.cpu or 0.0) > _WORKS


def _in(process: ProcessFacts, place: re.Pattern[str], calls: Sequence[int]) -> bool:
    if process.waits_in:
        return place.search(process.waits_in) is not None
    return process.call in calls


def _at(rank: RankEvidence) -> tuple[str, ...]:
    """Describe the place of a rank by its stack, or else its board."""
    frames = main_frames(rank.stack)
    place = script_place(frames)
    if place is None:
        return (*_called(frames), *_seen_at(rank))
    if place.is_innermost:
        return (f"it is at {place.where}",)
    inner = frames[0]
    called = f"{inner.function} ({os.path.basename(inner.file)}:{inner.line})"
    return (f"it is at {place.where}, which called {called}",)


def _called(frames: Sequence[StackFrame]) -> tuple[str, ...]:
    return (f"it is in {frames[0].function} ({frames[0].file}:{frames[0].line})",) if frames else ()


def _seen_at(rank: RankEvidence) -> tuple[str, ...]:
    return (f"it was last seen at {rank.where}: {rank.what}",) if rank.where else ()


def _steps(evidence: Evidence) -> tuple[str, ...]:
    steps = {rank.rank: rank.step for rank in evidence.ranks if rank.step >= 0}
    if len(set(steps.values())) < 2:
        return ()
    return ("optimizer steps: " + ", ".join(f"rank {rank} {step}" for rank, step in sorted(steps.items())),)
