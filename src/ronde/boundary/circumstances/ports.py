"""Ports that the script opens: a host has each of them once, and the first rank of the host gets it.

Another rank's server is bound to a free port in its place. For this rank and the processes that it forks that
is the port which the script asked for: they reach it, and are told it, by that number. Nothing is agreed
between ranks: a server may be a thread's, or one rank's alone.
"""

from __future__ import annotations

import errno
import functools
import mmap
import operator
import socket
import weakref
from collections.abc import Callable
from typing import Any

from ronde.boundary.patches import Patches

__all__ = ["PortTable", "Ports"]

_PORTS = 1 << 16
_PARTS = 4  # of the table: for each kind of socket so many numbers a port
_BEFORE_ADDRESS = 2  # ancillary data and flags
_NAMED = 3  # so many are named in a note
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_KINDS: dict[int, int] = {socket.SOCK_STREAM: 0, socket.SOCK_DGRAM: 1}


class PortTable:
    """Which port stands for which, for streams and for datagrams; one for a rank and the processes it forks.

    It lies in memory that forks share: a server in a child (a manager's) is known to its parent. An entry is
    one aligned number, so that nobody reads half of it.
    """

    def __init__(self) -> None:
        # Pages that nothing is written to take no memory.
        self._entries = memoryview(mmap.mmap(-1, len(_KINDS) * _PARTS * _PORTS * 2)).cast("H")

    def real(self, kind: int, asked: int) -> int:
        """The port in place of `asked`; 0 where there is none."""
        return self._entries[self._index(kind, 0, asked)]

    def asked(self, kind: int, real: int) -> int:
        """What the script calls this port; 0 where it is not in place of another."""
        return self._entries[self._index(kind, 1, real)]

    def is_found(self, kind: int, port: int) -> bool:
        """Whether this rank was given the port by the system, so that no other has it."""
        return bool(self._entries[self._index(kind, 2, port)])

    def is_served(self, kind: int, asked: int) -> bool:
        """Whether a server of this rank was ever at this port, and not only tried whether it is free."""
        return bool(self._entries[self._index(kind, 3, asked)])

    def put(self, kind: int, asked: int, real: int) -> None:
        before = self.real(kind, asked)
        if before:
            self._entries[self._index(kind, 1, before)] = 0
        self._entries[self._index(kind, 0, asked)] = real
        self._entries[self._index(kind, 1, real)] = asked

    def find(self, kind: int, port: int) -> None:
        self._entries[self._index(kind, 2, port)] = 1

    def serve(self, kind: int, asked: int) -> None:
        self._entries[self._index(kind, 3, asked)] = 1

    def all_served(self) -> list[int]:
        """Every port at which the script has had a server, by its number in the script."""
        return sorted({port for kind in _KINDS for port, served in enumerate(self._part(kind, 3)) if served})

    def _part(self, kind: int, part: int) -> memoryview[int]:
        begin = self._index(kind, part, 0)
        return self._entries[begin : begin + _PORTS]

    @staticmethod
    def _index(kind: int, part: int, port: int) -> int:
        return (_KINDS[kind] * _PARTS + part) * _PORTS + port


class Ports:
    """Replaces the methods of Python's sockets in which a port is named.

    Args:
        first: whether this rank is the first of its host.
    """

    def __init__(self, *, first: bool) -> None:
        self._first = first
        self._table = PortTable()
        self._bound: dict[tuple[int, int], weakref.WeakSet[socket.socket]] = {}
        self._plain_bind = socket.socket.bind
        self._plain_name = socket.socket.getsockname

    def install(self, patches: Patches) -> None:
        kind = socket.socket
        patches.set(kind, "bind", self._binding(kind.bind))
        patches.set(kind, "listen", self._listening(kind.listen))
        if self._first:
            return
        patches.set(kind, "connect", self._reaching(kind.connect))
        patches.set(kind, "connect_ex", self._reaching(kind.connect_ex))
        patches.set(kind, "sendto", self._sending(kind.sendto))
        patches.set(kind, "sendmsg", self._sending_parts(kind.sendmsg))
        for name in ("recvfrom", "recvfrom_into", "recvmsg", "recvmsg_into"):
            patches.set(kind, name, self._receiving(getattr(kind, name)))
        patches.set(kind, "getsockname", self._naming(kind.getsockname))
        patches.set(kind, "getpeername", self._naming(kind.getpeername, peer=True))

    def notes(self) -> list[str]:
        """What the user should know about ports."""
        ports = self._table.all_served()
        if not ports:
            return []
        named = ", ".join(map(str, ports[:_NAMED]))
        more = f" and {len(ports) - _NAMED} more" if len(ports) > _NAMED else ""
        which = f"port {named} is" if len(ports) == 1 else f"ports {named}{more} are"
        return [
            f"{which} the main rank's: every other rank opens a free one instead, which is not reached from "
            f"outside"
        ]

    def _binding(self, plain: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(plain)
        def bind(of: socket.socket, address: Any, /) -> None:
            port = _port(of, address)
            if port is None:
                plain(of, address)
            elif port == 0:
                plain(of, address)
                self._table.find(of.type, self._plain_name(of)[1])
            elif self._table.is_found(of.type, port):
                plain(of, address)
            else:
                if self._first:
                    plain(of, address)
                    self._table.put(of.type, port, port)
                else:
                    self._bind_elsewhere(of, address, port)
                if of.type == socket.SOCK_DGRAM:
                    self._table.serve(of.type, port)

        return bind

    def _bind_elsewhere(self, of: socket.socket, address: Any, asked: int) -> None:
        """Once for a port: whoever opens it again, for another family say, gets the same."""
        holders = self._bound.setdefault((of.type, asked), weakref.WeakSet())
        real = self._table.real(of.type, asked)
        if real:
            try:
                self._plain_bind(of, _with_port(address, real))
            except OSError as error:
                # A stranger may have got it meanwhile; what this rank has open twice is the script's error.
                ours = any(each.fileno() >= 0 for each in holders)
                if error.errno != errno.EADDRINUSE or ours:
                    raise
                real = 0
        if not real:
            self._plain_bind(of, _with_port(address, 0))
            self._table.put(of.type, asked, self._plain_name(of)[1])
        holders.add(of)

    def _listening(self, plain: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(plain)
        def listen(of: socket.socket, *backlog: Any) -> None:
            plain(of, *backlog)
            port = _port(of, self._plain_name(of))
            asked = self._table.asked(of.type, port) if port else 0
            if asked:
                self._table.serve(of.type, asked)

        return listen

    def _reaching(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def reach(of: socket.socket, address: Any, /) -> Any:
            return plain(of, self._own(of, address))

        return reach

    def _sending(self, plain: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(plain)
        def sendto(of: socket.socket, data: Any, *rest: Any) -> int:
            if rest:  # flags may stand before the address
                rest = (*rest[:-1], self._own(of, rest[-1]))
            return plain(of, data, *rest)

        return sendto

    def _sending_parts(self, plain: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(plain)
        def sendmsg(of: socket.socket, buffers: Any, *rest: Any) -> int:
            if len(rest) == _BEFORE_ADDRESS + 1:
                rest = (*rest[:-1], self._own(of, rest[-1]))
            return plain(of, buffers, *rest)

        return sendmsg

    def _receiving(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def receive(of: socket.socket, *args: Any, **options: Any) -> Any:
            *content, address = plain(of, *args, **options)
            return (*content, self._known(of, address))

        return receive

    def _own(self, of: socket.socket, address: Any) -> Any:
        """Where this rank's server is or was, if `address` means one."""
        port = _port(of, address)
        if not port or not self._table.is_served(of.type, port) or not self._is_local(of, address[0]):
            return address
        return _with_port(address, self._table.real(of.type, port))

    def _is_local(self, of: socket.socket, host: Any) -> bool:
        """Whether it is an address of this host, by any of its names."""
        try:
            with socket.socket(of.family, socket.SOCK_DGRAM) as probe:
                self._plain_bind(probe, (host, 0))
        except (OSError, TypeError, UnicodeError):
            return False
        return True

    def _naming(self, plain: Callable[..., Any], *, peer: bool = False) -> Callable[..., Any]:
        @functools.wraps(plain)
        def name(of: socket.socket, /) -> Any:
            address = plain(of)
            return self._known(of, address, peer=peer)

        return name

    def _known(self, of: socket.socket, address: Any, *, peer: bool = True) -> Any:
        """What the script calls this address; a `peer` may be another host's."""
        port = _port(of, address)
        asked = self._table.asked(of.type, port) if port else 0
        if not asked or (peer and not self._is_local(of, address[0])):
            return address
        return _with_port(address, asked)


def _port(of: socket.socket, address: Any) -> int | None:
    """The port in an address of a socket; None where it has none, or is none."""
    if of.family not in _FAMILIES or of.type not in _KINDS or not isinstance(address, tuple):
        return None
    try:
        port = operator.index(address[1])
    except (IndexError, TypeError):
        return None
    return port if 0 <= port < _PORTS else None


def _with_port(address: Any, port: int) -> Any:
    return (address[0], port, *address[2:])
