"""Runs a command and kills all its descendants: `python -m ronde.verify.keeper PARENT COMMAND...`.

`ronde verify` may be killed, and a script may leave processes behind that nothing ends. The keeper inherits
them, outlives `ronde verify` (the process PARENT) for long enough to kill them, and returns the command's
exit code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from ronde.launch.linux_process import become_subreaper, bind_to_parent, load_prctl

__all__ = ["main"]

# Time that ranks may take to end by themselves.
_PATIENCE_S = 5.0
_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def main(arguments: list[str]) -> int:
    parent, *command = arguments
    library, keeper = load_prctl(), os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_ENDING, signal.SIGCHLD})
    bind_to_parent(library, int(parent), signal.SIGTERM)
    become_subreaper(library, True)

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        bind_to_parent(library, keeper)

    child = subprocess.Popen(command, preexec_fn=prepare)  # noqa: PLW1509 - it has one thread
    if _ended(child, None):
        child.terminate()
        _ended(child, _PATIENCE_S)
    _end_children()
    code = child.returncode
    return 1 if code is None else code if code >= 0 else 128 - code


def _ended(child: subprocess.Popen[bytes], patience: float | None) -> bool:
    """Wait until the child ends; return whether a signal or the limit came first.

    Args:
        patience: seconds; None to wait without a limit.
    """
    signals = {*_ENDING, signal.SIGCHLD}
    while child.poll() is None:
        found = signal.sigwaitinfo(signals) if patience is None else signal.sigtimedwait(signals, patience)
        if found is None or found.si_signo in _ENDING:
            return True
    return False


def _end_children() -> None:
    """Kill all children, and the descendants that this process inherits from them."""
    while True:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # gone meanwhile
                fields = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
                if int(fields[1]) == os.getpid():
                    found.append(int(entry.name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
