"""Check of this host's clock, which dates the logs of several hosts."""

from __future__ import annotations

import ctypes

from ronde.doctor.asked import PreflightRequest
from ronde.doctor.finding import Finding

__all__ = ["check", "judge"]

CHECK = "clock"
_ERROR = 5  # TIME_ERROR of adjtimex(2): not synchronized


def check(asked: PreflightRequest) -> Finding:
    """Ask the kernel whether its clock is synchronized."""
    room = ctypes.create_string_buffer(512)  # a struct timex of zeros only reads
    return judge(ctypes.CDLL(None).adjtimex(room))


def judge(state: int) -> Finding:
    """Judge by the result of adjtimex(2)."""
    if state == _ERROR:
        return Finding(
            check=CHECK,
            level="note",
            summary="nothing corrects this host's clock; with several hosts, logs come in a wrong order",
            fix="chrony or systemd-timesyncd; in a container, on its host",
        )
    if state < 0:
        return Finding(check=CHECK, level="note", summary="the state of the clock is not shown")
    return Finding(check=CHECK, level="good", summary="the clock is corrected")
