"""A socket that listens for HTTP."""

from __future__ import annotations

import socket

from ronde.errors import LaunchError

__all__ = ["listen"]


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address of this machine.

    Args:
        port: TCP port; 0: any free one.

    Raises:
        LaunchError: the address is another machine's, or taken.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # asyncio sets TCP_NODELAY only if the socket's protocol is IPPROTO_TCP.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError as error:
        raise _refused(host, port, error) from None
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise _refused(host, port, error) from None
    return listening


def _refused(host: str, port: int, error: OSError) -> LaunchError:
    return LaunchError(f"cannot listen at {host}, port {port}: {error.strerror} [R615]")
