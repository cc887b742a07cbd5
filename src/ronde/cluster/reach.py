"""Addresses at which other hosts reach this one, tried by all of them."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
import threading
from collections.abc import Iterable, Sequence

__all__ = [
    "Greeter",
    "addresses_of",
    "candidates",
    "dial",
    "ephemeral_ports",
    "free_ports",
    "is_this_host",
    "listen_everywhere",
]

from ronde.cluster.own_address import source_towards

_SIOCGIFADDR = 0x8915
_DIAL_S = 2.0
_ANY_PORT = 9


def is_this_host(name: str) -> bool:
    """Return whether `name`, without `user@`, means this machine."""
    host = name.rpartition("@")[2]
    if host in ("localhost", "127.0.0.1", "::1", socket.gethostname()):
        return True
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def addresses_of(name: str) -> tuple[str, ...]:
    """Resolve a host's name, without `user@`, to addresses."""
    try:
        found = socket.getaddrinfo(name.rpartition("@")[2], None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(each[4][0]) for each in found))


def candidates(others: Iterable[str]) -> tuple[str, ...]:
    """Return addresses of this host, the likeliest for the other hosts first.

    The last one is the loopback address, for other names of this same machine. The word shows that it is the
    same machine, because every host has this address.
    """
    names = [name.rpartition("@")[2] for name in others]
    if not names:
        return ("127.0.0.1",)
    found = [source_towards(name, _ANY_PORT) for name in names] + list(_addresses_of_cards())
    usable = [address for address in found if address is not None and not _is_loopback(address)]
    return (*dict.fromkeys(usable), "127.0.0.1")


def listen_everywhere(port: int = 0) -> socket.socket:
    """Listen on all addresses of this host, by IPv4 and IPv6.

    Raises:
        OSError: the port is held by another process.
    """
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", port), backlog=1024)


class Greeter:
    """Server that sends a word to each caller, by which it is recognized."""

    def __init__(self, listener: socket.socket, word: str) -> None:
        self._listener = listener
        self._word = word.encode()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="ronde greeter", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and leave the socket open for another use."""
        self._stopped = True
        self._thread.join()
        self._listener.setblocking(True)

    def _run(self) -> None:
        self._listener.settimeout(0.05)
        while not self._stopped:
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                with connection:
                    connection.sendall(self._word)


def dial(addresses: Sequence[str], port: int, word: str) -> dict[str, str]:
    """Return the addresses that lead to the host with this word, and our own."""
    found: dict[str, str] = {}
    for address in addresses:
        with contextlib.suppress(OSError), socket.create_connection((address, port), _DIAL_S) as connection:
            connection.settimeout(_DIAL_S)
            said = b""
            while len(said) < len(word) and (data := connection.recv(len(word))):
                said += data
            if said == word.encode():
                found[address] = connection.getsockname()[0].removeprefix("::ffff:")
    return found


def free_ports(count: int) -> list[int]:
    """Return TCP ports that are free now."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


def ephemeral_ports() -> str:
    """Return the system's range of ephemeral ports, as "32768-60999"."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as stream:
            return "-".join(stream.read().split())
    except OSError:
        return "32768-60999"


def _addresses_of_cards() -> Iterable[str]:
    """Return the IPv4 address of every network card that is up."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # a card without an address
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                yield socket.inet_ntoa(answer[20:24])


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
            return True
    except OSError:
        return False


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
