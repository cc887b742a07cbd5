"""The process that serves the store where ranks of several hosts meet, outside of all ranks."""

from __future__ import annotations

import socket
import subprocess
import sys

__all__ = ["STORE", "start_store"]

# Nothing of the directory in which it happens to start may stand for a module.
STORE = (sys.executable, "-c", "import sys; sys.path[:1] = []; from ronde.runtime.store import main; main()")


def start_store(
    listener: socket.socket, *, linger: float, command: tuple[str, ...] = STORE
) -> subprocess.Popen[bytes]:
    """Serve at a socket that listens already, until this process is gone and `linger` seconds more."""
    descriptor = listener.fileno()
    return subprocess.Popen(
        [*command, str(descriptor), str(linger)],
        stdin=subprocess.DEVNULL,
        pass_fds=[descriptor],
        start_new_session=True,  # Ctrl-C is for the ranks
    )
