"""A socket that listens for HTTP."""

from __future__ import annotations

import socket

from ronde.errors import LaunchError

__all__ = ["bound_socket", "in_url", "listen"]


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address of this machine.

    Args:
        port: TCP port; 0: any free one.

    Raises:
        LaunchError: the address is another machine's, or taken.
    """
    try:
        return bound_socket(host, port)
    except OSError as error:
        raise LaunchError(f"cannot listen at {host}, port {port}: {error.strerror} [R615]") from None


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a TCP socket bound to an address, also if another was closed lately.

    Raises:
        OSError: the address is another machine's, or taken.
    """
    family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    # asyncio sets TCP_NODELAY only if the socket's protocol is IPPROTO_TCP.
    bound = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def in_url(address: str) -> str:
    """Format an address for a URL.

    >>> in_url("127.0.0.1"), in_url("::1")
    ('127.0.0.1', '[::1]')
    """
    return f"[{address}]" if ":" in address else address
