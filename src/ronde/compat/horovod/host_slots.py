"""`horovod.runner.common.util.hosts`: assignment of ranks to hosts."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ronde.cluster import host_list
from ronde.errors import UsageError

__all__ = [
    "INVALID_SLOT_INFO", "HostInfo", "SlotInfo", "get_host_assignments", "host_hash", "parse_host_files",
    "parse_hosts", "parse_hosts_and_slots",
]  # fmt: skip


@dataclasses.dataclass
class HostInfo:
    """A host and its number of slots."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        return parse_hosts(host_string)[0]


@dataclasses.dataclass
class SlotInfo:
    """A rank's place in the job."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        numbers = (
            self.rank, self.size, self.local_rank, self.local_size, self.cross_rank, self.cross_size,
        )  # fmt: skip
        return ",".join(map(str, numbers))


INVALID_SLOT_INFO = SlotInfo("", -1, -1, -1, -1, -1, -1)


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Parse `host1:2,host2:4`.

    Raises:
        ValueError: the text is malformed.
    """
    found = _or_value_error(host_list.parse_hosts, hosts_string, origin=f"hosts={hosts_string}")
    return [HostInfo(each.name, each.slots) for each in found]


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """Parse `host1:2,host2:4` into names, and slots by name.

    Raises:
        ValueError: the text is malformed.
    """
    found = parse_hosts(hosts)
    return [each.hostname for each in found], {each.hostname: each.slots for each in found}


def parse_host_files(filename: str) -> str:
    """Read a file of lines `host slots=2`; return `host1:2,host2:4`.

    Raises:
        ValueError: the file is unreadable or malformed.
    """
    found = _or_value_error(host_list.read_hostfile, Path(filename))
    return ",".join(f"{each.name}:{each.slots}" for each in found)


def _or_value_error(read: Any, *args: Any, **options: Any) -> Sequence[host_list.HostSlots]:
    try:
        return read(*args, **options)
    except UsageError as error:
        raise ValueError(str(error)) from None


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Assign ranks to hosts in order, `max_num_proc` at most.

    Raises:
        ValueError: the hosts have fewer slots than `min_num_proc`.
    """
    shares: list[tuple[str, int]] = []
    size = 0
    for host in hosts:
        share = host.slots if max_num_proc is None else min(host.slots, max_num_proc - size)
        shares.append((host.hostname, share))
        size += share
    if size < min_num_proc:
        raise ValueError(
            f"{size} slots are fewer than {min_num_proc} ranks; give the hosts more (HOST:N) [R725]"
        )
    found: list[SlotInfo] = []
    for place, (name, share) in enumerate(shares):
        for local in range(share):
            before = sum(other > local for _, other in shares[:place])
            across = sum(other > local for _, other in shares)
            found.append(SlotInfo(name, len(found), local, before, size, share, across))
    return found


def host_hash(salt: Any = None) -> str:
    """Return a name of this host, equal for processes that share its memory."""
    name, namespaces = socket.gethostname(), Path("/proc/self/ns")
    spaces = sorted(os.readlink(each) for each in namespaces.iterdir()) if namespaces.is_dir() else []
    told = "/".join((name, *spaces, str(salt or "")))
    return f"{name.partition('.')[0]}-{hashlib.sha256(told.encode()).hexdigest()[:32]}"
