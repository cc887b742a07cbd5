"""Unix sockets: a path is bound once, by the main rank, and leads every rank to its own server.

To bind makes a file, so it is a meeting like other changes of files. Then another rank's socket is bound to a
name without a file, which this rank and the processes that it forks know for the path.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import socket
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from ronde.boundary.files.mediation import Mediation
from ronde.boundary.patches import Patches

__all__ = ["UnixSockets"]

_MULTIPROCESSING = "pymp-"  # how the folders of its own sockets begin: those are new on every rank


class UnixSockets:
    """Replaces the methods of Python's sockets in which a path is named."""

    def __init__(self, mediation: Mediation) -> None:
        self._mediation = mediation
        self._run = os.urandom(8).hex()
        self._turns: defaultdict[str, int] = defaultdict(int)
        self._asked: dict[bytes, str | bytes] = {}

    def install(self, patches: Patches) -> None:
        kind = socket.socket
        patches.set(kind, "bind", self._binding(kind.bind))
        if self._mediation.is_main:
            return
        patches.set(kind, "connect", self._connecting(kind.connect))
        patches.set(kind, "connect_ex", self._trying(kind.connect_ex))
        patches.set(kind, "sendto", self._sending(kind.sendto))
        patches.set(kind, "getsockname", self._naming(kind.getsockname))
        patches.set(kind, "getpeername", self._naming(kind.getpeername))

    def _binding(self, plain: Callable[..., None]) -> Callable[..., None]:
        mediation = self._mediation

        @functools.wraps(plain)
        def bind(of: socket.socket, address: Any, /) -> None:
            if not self._is_shared(of, address):
                plain(of, address)
                return
            located = mediation.paths.locate(address) if _has_file(address) else None
            met = located is not None and mediation.governs()
            if met and located is not None:
                mediation.meet("socket.bind", located, lambda: plain(of, address))
                mediation.met_over(located)
            if not mediation.is_main:
                self._bind_own(plain, of, address, met=met)
                if located is not None and not met:
                    self._leave_file(located)
            elif not met:
                plain(of, address)

        return bind

    def _bind_own(self, plain: Callable[..., None], of: socket.socket, address: Any, *, met: bool) -> None:
        """Under another name where the main rank could bind: beside a socket whose file is gone, that is."""
        try:
            plain(of, self._own(address))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not met:
                raise
            self._turns[self._key(address)] += 1
            plain(of, self._own(address))
        asked = os.fsdecode(address) if _has_file(address) else os.fsencode(address)
        self._asked[self._own(address)] = asked

    def _leave_file(self, located: str) -> None:
        """For threads of this rank, which look for a socket's file, and remove it."""
        place = self._mediation.place_to_write(located)
        if place is not None:
            with self._mediation.unmediated(), open(place, "wb"):
                pass

    def _connecting(self, plain: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(plain)
        def connect(of: socket.socket, address: Any, /) -> None:
            if self._is_shared(of, address):
                try:
                    return plain(of, self._own(address))
                except ConnectionRefusedError:  # no process of this rank serves it
                    if self._has_ended(address):
                        raise
            plain(of, address)

        return connect

    def _trying(self, plain: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(plain)
        def connect_ex(of: socket.socket, address: Any, /) -> int:
            if self._is_shared(of, address):
                code = plain(of, self._own(address))
                if code != errno.ECONNREFUSED or self._has_ended(address):
                    return code
            return plain(of, address)

        return connect_ex

    def _sending(self, plain: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(plain)
        def sendto(of: socket.socket, data: Any, *rest: Any) -> int:
            if rest and self._is_shared(of, rest[-1]):  # flags may stand before the address
                try:
                    return plain(of, data, *rest[:-1], self._own(rest[-1]))
                except ConnectionRefusedError:
                    if self._has_ended(rest[-1]):
                        raise
            return plain(of, data, *rest)

        return sendto

    def _naming(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def name(of: socket.socket, /) -> Any:
            address = plain(of)
            return self._asked.get(address, address) if isinstance(address, bytes) else address

        return name

    def _is_shared(self, of: socket.socket, address: Any) -> bool:
        """Whether other ranks may bind the same: it has a name, which is not this rank's own."""
        if of.family != socket.AF_UNIX or not isinstance(address, (str, bytes)) or not address:
            return False
        if not _has_file(address):
            return not os.fsencode(address).startswith(b"\0ronde-")
        located = os.path.abspath(os.fsdecode(address))
        if os.path.basename(os.path.dirname(located)).startswith(_MULTIPROCESSING):
            return False
        return not self._mediation.paths.is_exempt(located)

    def _has_ended(self, address: Any) -> bool:
        """Whether it was this rank's: then the main rank's, which may be there for longer, is not meant."""
        return self._own(address) in self._asked and (not _has_file(address) or os.path.exists(address))

    def _own(self, address: Any) -> bytes:
        """This rank's name for it, of the kind that has no file: it ends with its sockets."""
        key = self._key(address)
        digest = hashlib.sha256(os.fsencode(key)).hexdigest()[:32]
        return f"\0ronde-{self._run}-{digest}-{self._turns[key]}".encode()

    def _key(self, address: Any) -> str:
        located = self._mediation.paths.locate(address) if _has_file(address) else None
        return os.fsdecode(address) if located is None else located


def _has_file(address: str | bytes) -> bool:
    return not os.fsencode(address).startswith(b"\0")
