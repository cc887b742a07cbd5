"""Signs of life of a rank, in a file that its launcher maps too.

Writing costs no system call. The file outlives the rank, and can be read while the rank is stopped, holds the
GIL, or is dead.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import signal
import struct
from collections.abc import Mapping
from pathlib import Path
from time import monotonic_ns  # bound here: the module's own is replaced for scripts

__all__ = ["STACK_SIGNAL", "Heartbeat", "Vitals", "first_not_finite", "look_at", "vitals_path"]

# Signal on which a rank writes its stack: a real-time signal, which scripts hardly use. Other systems than
# Linux have none, but must be able to import this file, to refuse the system with a message.
STACK_SIGNAL = getattr(signal, "SIGRTMIN", 34) + 7

_PID, _THREAD, _BEAT, _STEP, _ANSWERS, _NOT_FINITE, _THREADS = range(7)
_COUNT = 8
_NUMBERS = struct.Struct(f"<{_COUNT}q")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat:
    """Last signs of life of a rank.

    Attributes:
        pid: its process.
        thread: Python's number of its main thread.
        beat: time at which its thread ran last, in seconds of the monotonic clock; 0 before its first run.
        step: optimizer steps.
        answers: whether the rank still handles the signal that asks for stacks; the script may use it itself.
        not_finite: first step of the present sequence of steps with non-finite local gradients; 0 if they are
            finite.
        threads: number of threads that it computes with.
    """

    pid: int
    thread: int
    beat: float
    step: int
    answers: bool
    not_finite: int
    threads: int


def vitals_path(directory: Path, rank: int) -> Path:
    return directory / f"rank-{rank}.vitals"


class Vitals:
    """Writer of a rank's own signs of life."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._numbers = memoryview(memory).cast("q")

    @classmethod
    def create(cls, path: Path, *, thread: int, threads: int) -> Vitals | None:
        """Make the file; None where that is impossible: a rank works without it."""
        try:
            # ronde does not patch os.open. The file is written, not only extended: see `progress.py`.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                os.write(descriptor, _NUMBERS.pack(os.getpid(), thread, 0, 0, 1, 0, threads, 0))
                return cls(mmap.mmap(descriptor, _NUMBERS.size))
            finally:
                os.close(descriptor)
        except (OSError, ValueError):
            return None

    def beat(self, *, answers: bool) -> None:
        """Record that a thread of this rank has run Python code just now."""
        self._numbers[_BEAT] = monotonic_ns()
        self._numbers[_ANSWERS] = answers

    def step(self, steps: int) -> None:
        """Record that `steps` optimizer steps are done."""
        self._numbers[_STEP] = steps

    def finite(self, answer: bool) -> None:
        """Record whether this rank's local gradients are finite in the current step."""
        if answer == bool(self._numbers[_NOT_FINITE]):
            self._numbers[_NOT_FINITE] = 0 if answer else self._numbers[_STEP] + 1


def look_at(path: Path) -> Heartbeat | None:
    """Read the signs of life of a rank; None before its start."""
    try:
        numbers = _NUMBERS.unpack(path.read_bytes())
    except (OSError, struct.error):
        return None
    return Heartbeat(
        pid=numbers[_PID],
        thread=numbers[_THREAD],
        beat=numbers[_BEAT] / 1e9,
        step=numbers[_STEP],
        answers=bool(numbers[_ANSWERS]),
        not_finite=numbers[_NOT_FINITE],
        threads=numbers[_THREADS],
    )


def first_not_finite(since: Mapping[int, int]) -> tuple[int, int, bool] | None:
    """Find the rank with the first non-finite gradients; None if all are finite.

    Args:
        since: step of each rank's first non-finite gradient, 0 for finite ones.

    Returns:
        the first rank, its step, and whether several ranks began at this same step.
    """
    steps = {rank: step for rank, step in since.items() if step}
    if not steps:
        return None
    rank = min(steps, key=lambda each: (steps[each], each))
    return rank, steps[rank], list(since.values()).count(steps[rank]) == len(since) > 1
