"""A wrong clock, by a preloaded library in a host's processes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from ronde.testing.hosts import HostsUnavailable

__all__ = ["shifted_clock"]

# Linux has no namespace for the time of day.
_SOURCE = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *found) {
    int failed = syscall(SYS_clock_gettime, clock, found);
    if (!failed && clock == CLOCK_REALTIME) found->tv_sec += SECONDS;
    return failed;
}
int gettimeofday(struct timeval *found, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
"""


def shifted_clock(seconds: float, here: Path) -> dict[str, str]:
    """Return variables under which a process's time of day is ahead.

    Args:
        seconds: number of seconds by which it is ahead.
        here: folder for the library.

    Raises:
        HostsUnavailable: the compiler is missing.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise HostsUnavailable("`cc` is missing, by which a clock is shifted")
    library = here / "clock.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", f"-DSECONDS={int(seconds)}", "-o", str(library), "-x", "c", "-"],
        input=_SOURCE,
        text=True,
        check=True,
    )
    return {"LD_PRELOAD": str(library)}
