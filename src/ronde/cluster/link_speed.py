"""Latency and bandwidth of the link to another host, measured over TCP."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

__all__ = ["LinkSpeed", "Reflector", "measure", "steady_rate"]

_ECHO, _GIVE = b"e", b"g"
_ROUNDS = 20
# Long enough for the initial burst of a network card's queue to be over.
_SECONDS = 0.4
_PATIENCE_S = 5.0
_CHUNK = bytes(1 << 16)


class LinkSpeed(NamedTuple):
    """Link as one host measures it.

    Attributes:
        latency: median seconds of a round trip of one byte.
        rate: bytes per second from the other host.
    """

    latency: float
    rate: float


def measure(address: str, port: int, word: str) -> LinkSpeed:
    """Measure the link to a `Reflector` that has this word.

    Raises:
        OSError: the other host is not reached, or does not answer.
    """
    with _connected(address, port, word, _ECHO) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = [_echo(link) for _ in range(_ROUNDS)]
    with _connected(address, port, word, _GIVE) as link:
        return LinkSpeed(median(times), _take(link))


class Reflector:
    """Server for the measurements of other hosts, with a thread for each."""

    def __init__(self, listener: socket.socket, word: str) -> None:
        self._listener, self._word = listener, word.encode()
        self._thread = threading.Thread(target=self._run, name="ronde reflector", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with contextlib.suppress(OSError), link:
            link.settimeout(_PATIENCE_S)
            if _exactly(link, len(self._word)) != self._word:
                return
            wish = _exactly(link, 1)
            if wish == _ECHO:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while byte := link.recv(1):
                    link.sendall(byte)
            elif wish == _GIVE:
                _give(link)


def steady_rate(came: Sequence[tuple[float, int]]) -> float:
    """Return the bytes per second in the second half of the time.

    Args:
        came: times (seconds) and the bytes received by then, in order.
    """
    if len(came) < 2:
        return 0.0
    middle = (came[0][0] + came[-1][0]) / 2
    start = max(point for point in came if point[0] <= middle)
    passed = came[-1][0] - start[0]
    return (came[-1][1] - start[1]) / passed if passed else 0.0


def _connected(address: str, port: int, word: str, wish: bytes) -> socket.socket:
    link = socket.create_connection((address, port), _PATIENCE_S)
    try:
        link.sendall(word.encode() + wish)
    except OSError:
        link.close()
        raise
    return link


def _echo(link: socket.socket) -> float:
    began = time.perf_counter()
    link.sendall(b".")
    _exactly(link, 1)
    return time.perf_counter() - began


def _give(link: socket.socket) -> None:
    """Send until the other side has enough."""
    while True:
        link.sendall(_CHUNK)


def _take(link: socket.socket) -> float:
    """Receive for a given time, and return the rate."""
    came = [(time.monotonic(), 0)]
    room = bytearray(1 << 18)
    with contextlib.suppress(TimeoutError):
        while (left := came[0][0] + _SECONDS - time.monotonic()) > 0:
            link.settimeout(left)
            count = link.recv_into(room)
            if not count:
                break
            came.append((time.monotonic(), came[-1][1] + count))
    return steady_rate([*came, (time.monotonic(), came[-1][1])])


def _exactly(link: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        data = link.recv(count - len(found))
        if not data:
            raise ConnectionResetError(os.strerror(errno.ECONNRESET))
        found += data
    return found
