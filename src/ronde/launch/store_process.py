"""The process of the store where ranks of several hosts meet."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

__all__ = ["STORE", "start_store"]

# Nothing of the directory in which it happens to start may stand for a module.
STORE = (sys.executable, "-c", "import sys; sys.path[:1] = []; from ronde.runtime.store import main; main()")


def start_store(
    listener: socket.socket, log: Path, *, linger: float, command: tuple[str, ...] = STORE
) -> subprocess.Popen[bytes]:
    """Serve the store at a listening socket until this process is gone.

    What it says is in `log`: a launcher waits for the end of all that holds its pipes.
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
