"""The address by which ranks of other hosts reach this one."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Mapping

__all__ = ["CHOSEN_INTERFACE", "own_address", "source_towards"]

# Set by the user to override the choice; the backend uses it if it is given no address.
CHOSEN_INTERFACE = "GLOO_SOCKET_IFNAME"
# A reserved address (RFC 5737), whose route is the default route.
_ANYWHERE = "192.0.2.1"


def own_address(
    main_host: str, port: int, *, several_hosts: bool, environment: Mapping[str, str]
) -> str | None:
    """Return the address of the interface towards rank 0's host; None: unknown.

    The backend would look up this host's own name, which many systems resolve to 127.0.1.1: then ranks of
    other hosts are told to find this one on themselves.

    Args:
        several_hosts: whether ranks are on several hosts, so that a loopback address is not usable.
    """
    if environment.get(CHOSEN_INTERFACE):
        return None
    for target in (main_host, _ANYWHERE):
        address = source_towards(target, port)
        if address is not None and not (several_hosts and ipaddress.ip_address(address).is_loopback):
            return address
    return None


def source_towards(host: str, port: int) -> str | None:
    """Return the source address of packets to an address; nothing is sent."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, target in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(target)
                return probe.getsockname()[0]
    return None
