"""Causes of a rank's end by a signal or an exit code."""

from __future__ import annotations

import signal

from ronde.doctor.stacks import main_frames, script_place
from ronde.trace.evidence import Evidence, RankEvidence
from ronde.trace.explanation import Explanation

__all__ = [
    "bus_error",
    "crashed",
    "exited",
    "killed",
    "launcher_gave_up",
    "launcher_lost",
    "memory_of_the_host",
    "peer_lost",
    "signalled",
]

_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
# Free bytes of a host below which a rank is suspected of having filled its memory.
_TIGHT = 512 << 20
# Losses that end a run: the cause, and the remedy.
_LOST = {
    "server": ("server-lost", "its log says why it ended"),
    "store": ("store-lost", "store.log in the run directory may say why it ended"),
    "gone": ("rank-gone", "see what the launcher says that has started it, and dmesg"),
}


def memory_of_the_host(evidence: Evidence) -> Explanation | None:
    """Explain a SIGKILL after the kernel recorded that memory ran out."""
    rank = _ended_by(evidence, signal.SIGKILL)
    if rank is None:
        return None
    host = evidence.host_of(rank)
    noted = [line for line in host.kernel if "out of memory" in line.lower() or "oom" in line.lower()]
    about_it = [line for line in noted if str(rank.process.pid) in line]
    if host.oom_kills <= 0 and not about_it:
        return None
    counted = f"the kernel counted {host.oom_kills} such kills in this control group during the run"
    fewer = "fewer ranks, " if len(evidence.ranks) > 1 else ""
    plan = "zero3,micro-batches=4" if len(evidence.ranks) > 1 else "micro-batches=4"
    return Explanation(
        cause="host-memory",
        rank=rank.rank,
        summary=f"rank {rank.rank} was killed by the kernel, because memory ran out",
        evidence=(*((counted,) if host.oom_kills > 0 else ()), *(about_it or noted)[-2:], *_last_step(rank)),
        fix=f"a smaller batch, {fewer}fewer loader workers, or --plan {plan}",
    )


def killed(evidence: Evidence) -> Explanation | None:
    """Explain a SIGKILL of unknown origin."""
    rank = _ended_by(evidence, signal.SIGKILL)
    if rank is None:
        return None
    memory = evidence.host_of(rank).memory
    fix = "ask who sends it: a batch system's limit, an administrator, a script"
    doubt = "no kill for lack of memory was counted or logged here"
    if 0 <= memory < _TIGHT:
        doubt = "memory was nearly used up, but no kill for lack of it was counted"
        fix = "take a smaller batch first; else " + fix
    return Explanation(
        cause="killed",
        rank=rank.rank,
        summary=f"rank {rank.rank} was killed from outside (SIGKILL)",
        evidence=(doubt, *_last_step(rank)),
        fix=fix,
    )


def bus_error(evidence: Evidence) -> Explanation | None:
    """Explain a SIGBUS: no space for memory that is backed by a file."""
    rank = _ended_by(evidence, signal.SIGBUS)
    if rank is None:
        return None
    free = evidence.host_of(rank).shared
    left = (f"/dev/shm has {free >> 20} MiB free",) if free >= 0 else ()
    return Explanation(
        cause="shared-memory",
        rank=rank.rank,
        summary=f"rank {rank.rank} met a bus error: shared memory is full, or the disk of a mapped file",
        evidence=(*left, *_crash_line(rank)),
        fix="see df /dev/shm, and make it larger (docker run --shm-size=8g), or use fewer loader workers",
    )


def crashed(evidence: Evidence) -> Explanation | None:
    """Explain a signal that a defect in compiled code causes."""
    for number in _CRASHES:
        rank = _ended_by(evidence, number)
        if rank is not None:
            where = _crash_line(rank)
            return Explanation(
                cause="aborted" if number == signal.SIGABRT else "crashed",
                rank=rank.rank,
                summary=f"rank {rank.rank} crashed in compiled code ({number.name})",
                evidence=(*where, *_last_step(rank)),
                fix=(
                    "the line above called it: try its library in another version"
                    if where
                    else "look for the library in the log's last lines, and try another version of it"
                ),
            )
    return None


def signalled(evidence: Evidence) -> Explanation | None:
    """Explain any other signal."""
    rank = _failed(evidence)
    if rank is None or evidence.failure is None or evidence.failure.kind != "signal":
        return None
    number = -(rank.code or 0)
    if number == signal.SIGXCPU:
        summary = f"rank {rank.rank} used up the processor time that `ulimit -t` allows"
        return Explanation(cause="cpu-limit", rank=rank.rank, summary=summary, fix="raise it: ulimit -t")
    return Explanation(
        cause="signalled",
        rank=rank.rank,
        summary=f"rank {rank.rank} was ended by signal {_name(number)}, which nobody here has sent",
        evidence=_last_step(rank),
        fix="ask who sends it: a batch system, an administrator, the script itself",
    )


def exited(evidence: Evidence) -> Explanation | None:
    """Explain a rank that alone ended with an exit code."""
    rank = _failed(evidence)
    if rank is None or evidence.failure is None or evidence.failure.kind != "exit":
        return None
    alone = all(each.code in (0, None) for each in evidence.ranks if each is not rank)
    return Explanation(
        cause="exited",
        rank=rank.rank,
        summary=f"rank {rank.rank} ended itself with exit code {evidence.failure.exit_code}"
        + (", and the others did not" if alone and len(evidence.ranks) > 1 else ""),
        evidence=_last_step(rank),
        fix="look for sys.exit, os._exit or exit() in the script, and for what its branch depends on",
        told=True,
    )


def launcher_gave_up(evidence: Evidence) -> Explanation | None:
    """Explain a run that the launcher itself has ended."""
    failure = evidence.failure
    if failure is None or failure.kind not in _LOST:
        return None
    cause, fix = _LOST[failure.kind]
    return Explanation(
        cause=cause,
        rank=None,
        summary=evidence.said.splitlines()[0],
        fix=fix,
        told=True,
    )


def launcher_lost(evidence: Evidence) -> Explanation | None:
    """Explain ranks that ended because the launcher was killed."""
    if not evidence.launcher_gone:
        return None
    last = max((rank.step for rank in evidence.ranks), default=-1)
    return Explanation(
        cause="launcher-lost",
        rank=None,
        summary="ronde run itself was killed before its ranks had ended, and they ended with it",
        evidence=(f"the ranks had done {last} steps",) if last > 0 else (),
        fix="ask who sends the signal: a batch system's limit, lack of memory, a session that was closed",
    )


def peer_lost(evidence: Evidence) -> Explanation | None:
    """Explain ranks that lost another, when nothing else is known."""
    failure = evidence.failure
    if failure is None or failure.kind != "peer":
        return None
    rank = evidence.rank(failure.rank)
    error = {} if rank is None or rank.error is None else rank.error
    return Explanation(
        cause="peer-lost",
        rank=None,
        summary=f"rank {failure.rank} lost its peers: {error.get('message', '')}",
        fix="the log of the rank that it names may say more",
        told=True,
    )


def _failed(evidence: Evidence) -> RankEvidence | None:
    return None if evidence.failure is None else evidence.rank(evidence.failure.rank)


def _ended_by(evidence: Evidence, number: int) -> RankEvidence | None:
    """Return the rank that failed first, if this signal ended it."""
    rank = _failed(evidence)
    return rank if rank is not None and rank.code == -number else None


def _last_step(rank: RankEvidence) -> tuple[str, ...]:
    if rank.where:
        step = f"after step {rank.step}, " if rank.step > 0 else ""
        return (f"{step}it was last seen at {rank.where}: {rank.what}",)
    return (f"it had done {rank.step} steps",) if rank.step > 0 else ()


def _crash_line(rank: RankEvidence) -> tuple[str, ...]:
    frames = main_frames(rank.crash[rank.crash.find("Current thread") :] if rank.crash else "")
    if not frames:
        return ()
    inner, place = frames[0], script_place(frames)
    called = f"{inner.file}:{inner.line}, in {inner.function}"
    if place is None:
        return (f"it crashed at {called}",)
    return (f"it crashed at {place.where}" + ("" if place.is_innermost else f", which called {called}"),)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
