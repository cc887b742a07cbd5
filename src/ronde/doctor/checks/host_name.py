"""The check of this host's name: others reach it by the name's address."""

from __future__ import annotations

import ipaddress
import socket

from ronde.doctor.asked import PreflightRequest
from ronde.doctor.finding import Finding, Level

__all__ = ["check", "judge"]

CHECK = "host-name"


def check(asked: PreflightRequest) -> Finding:
    """Resolve the name as a rank would."""
    name = socket.gethostname()
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(name, None)}
    except OSError:
        found = set()
    return judge(name, found, asked.hosts)


def judge(name: str, addresses: set[str], hosts: int) -> Finding:
    """Judge by the addresses of the name, which a single host does not need."""
    level: Level = "wrong" if hosts > 1 else "note"
    if not addresses:
        return Finding(
            check=CHECK,
            level=level,
            summary=f"this host's name, {name}, has no address",
            fix=f"add a line to /etc/hosts: ADDRESS {name}",
        )
    told = f"{name} is {', '.join(sorted(addresses))}"
    if all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in addresses):
        return Finding(
            check=CHECK,
            level=level,
            summary=f"{told}, where no other host reaches it",
            fix=f"in /etc/hosts, put {name} behind the address of its network card (one host does without)",
        )
    return Finding(check=CHECK, level="good", summary=told)
