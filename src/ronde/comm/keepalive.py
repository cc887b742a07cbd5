"""Makes the kernel notice a silent host: a pulled cable closes no connection.

Without it a rank that waits for bytes from such a host waits until its own time limit, because it has sent
nothing that would have to be acknowledged. The connections are the backend's, which offers no setting for it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["keep_alive", "watch"]

_PROBES = 3


@contextmanager
def keep_alive(silence: float) -> Iterator[None]:
    """Watch the connections opened in the `with` block, as `watch` does.

    They fail when their other end has answered nothing for about `silence` seconds. A process that is busy or
    stopped does answer, by its kernel.
    """
    before = _sockets()
    yield
    for number in _sockets() - before:
        # A copy of the descriptor is the same connection; it is closed here, the backend's stays open.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            if connection.type == socket.SOCK_STREAM and connection.family != socket.AF_UNIX:
                connection.getpeername()  # fails for one that listens
                watch(connection, silence)


def watch(connection: socket.socket, silence: float) -> None:
    """Make a TCP connection fail after about `silence` seconds without any answer."""
    interval = max(1, round(silence / (_PROBES + 1)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    # For data that has been sent and not acknowledged, when no probe is sent.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(silence * 1000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _sockets() -> set[int]:
    """Return the descriptors of this process that are sockets."""
    found: set[int] = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own is closed already
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.add(int(name))
    return found
