"""Rendezvous store of ranks on several hosts, in a process of its own.

`python -m ronde.runtime.store DESCRIPTOR LINGER`: the descriptor is a socket that listens already, so
ranks may come before torch has been imported here. It ends LINGER seconds after its parent.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

__all__ = ["main"]

_LOOK_S = 0.5


def main() -> None:
    """Serve until the parent is gone, or a signal comes."""
    descriptor, linger, parent = int(sys.argv[1]), float(sys.argv[2]), os.getppid()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    listener = socket.socket(fileno=descriptor)
    port = listener.getsockname()[1]
    listener.detach()
    from torch.distributed import TCPStore

    store = TCPStore("localhost", port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    time.sleep(linger)
    del store


if __name__ == "__main__":
    main()
