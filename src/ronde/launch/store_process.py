"""The process of the store where ranks of several hosts meet."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

__all__ = ["STORE", "start_store"]

# A file of the present directory must not shadow a module.
STORE = (sys.executable, "-c", "import sys; sys.path[:1] = []; from ronde.runtime.store import main; main()")


def start_store(
    listener: socket.socket, log: Path, *, linger: float, command: tuple[str, ...] = STORE
) -> subprocess.Popen[bytes]:
    """Serve the store at a listening socket until this process has ended.

    Its output goes to `log`, because a launcher waits for all processes that hold its pipes.
    """
    descriptor = listener.fileno()
    with log.open("ab") as said:
        return subprocess.Popen(
            [*command, str(descriptor), str(linger)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            pass_fds=[descriptor],
            start_new_session=True,  # Ctrl-C is for the ranks
        )
