"""The connections of ranks to other hosts, as Linux shows them."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ronde.trace.evidence import Connection

__all__ = ["TrafficSample", "compared", "look"]

_SOCKET = re.compile(r"socket:\[(\d+)\]")
_ESTABLISHED = "01"
# Fields of a line of `/proc/net/tcp`, with the number of retransmissions.
_REMOTE, _STATE, _QUEUES, _REPEATED, _INODE = 2, 3, 4, 6, 9


class TrafficSample(NamedTuple):
    """Connections and traffic at one moment.

    Attributes:
        connections: queued bytes and retransmissions, by inode and peer.
        sent: bytes that the host's cards have sent since they are up.
    """

    connections: Mapping[tuple[str, str], tuple[int, int]]
    sent: int


def look(pids: Collection[int], proc: Path = Path("/proc")) -> TrafficSample:
    """Read the established connections of these processes, which share a network."""
    for pid in pids:
        tables = [_read(proc / str(pid) / "net" / name) for name in ("tcp", "tcp6")]
        if any(tables):
            mine = {inode for each in pids for inode in _sockets(proc / str(each) / "fd")}
            return TrafficSample(
                {
                    (inode, peer): (queued, repeated)
                    for table in tables
                    for inode, peer, queued, repeated in _rows(table)
                    if inode in mine
                },
                _sent(_read(proc / str(pid) / "net" / "dev")),
            )
    return TrafficSample({}, 0)


def compared(before: TrafficSample, after: TrafficSample) -> Sequence[Connection]:
    """Compare two samples, by peer."""
    found: dict[str, Connection] = {}
    for key, (queued, repeated) in after.connections.items():
        earlier, _ = before.connections.get(key, (0, 0))
        _, peer = key
        known = found.get(peer, Connection(peer=peer))
        found[peer] = Connection(
            peer=peer,
            queued=known.queued + min(queued, earlier),
            repeated=max(known.repeated, repeated),
        )
    return [found[peer] for peer in sorted(found)]


def _rows(table: str) -> Iterator[tuple[str, str, int, int]]:
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) <= _INODE or fields[_STATE] != _ESTABLISHED:
            continue
        peer = _address(fields[_REMOTE].partition(":")[0])
        if not ipaddress.ip_address(peer).is_loopback:
            queued = int(fields[_QUEUES].partition(":")[0], 16)
            yield fields[_INODE], peer, queued, int(fields[_REPEATED], 16)


def _address(text: str) -> str:
    """Read an address of the kernel: words of 32 bits, little end first."""
    words = (bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    address = ipaddress.ip_address(b"".join(words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _sent(table: str) -> int:
    """Return the bytes sent by all cards but the loopback."""
    sent = 0
    for line in table.splitlines()[2:]:
        name, _, counts = line.partition(":")
        if name.strip() != "lo" and len(fields := counts.split()) > 8:
            sent += int(fields[8])
    return sent


def _sockets(folder: Path) -> Iterator[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            match = _SOCKET.fullmatch(os.readlink(folder / name))
        except OSError:
            continue
        if match:
            yield match[1]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
