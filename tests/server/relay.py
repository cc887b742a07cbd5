"""A TCP relay to a server that may change what it passes on."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

__all__ = ["TO_CLIENT", "TO_SERVER", "Change", "relay"]

TO_SERVER, TO_CLIENT = "to server", "to client"

Change: TypeAlias = "Callable[[str, bytes], bytes]"
"""Returns the piece that goes on, of a direction and a piece."""


class _Relay:
    """Threads that pass pieces between each client and a server of its own connection."""

    def __init__(self, target: tuple[str, int], change: Change) -> None:
        self._target, self._change = target, change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        _end(self._listener)
        self._threads[0].join()  # nobody else comes
        for each in self._sockets:
            _end(each)
        for each in self._threads:
            each.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._sockets.append(near)
                far = socket.create_connection(self._target)
                self._sockets.append(far)
                for name, ends in ((TO_SERVER, (near, far)), (TO_CLIENT, (far, near))):
                    self._threads.append(threading.Thread(target=self._pass_on, args=(name, *ends)))
                    self._threads[-1].start()

    def _pass_on(self, name: str, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                target.sendall(self._change(name, piece))
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@contextlib.contextmanager
def relay(endpoint: str, change: Change) -> Iterator[str]:
    """Yield the address of a relay to the server at `endpoint`."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    made = _Relay((host, int(port)), change)
    try:
        yield made.endpoint
    finally:
        made.close()
