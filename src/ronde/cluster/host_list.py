"""Hosts with numbers of ranks, in Horovod's and MPI's forms."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ronde.errors import UsageError

__all__ = ["HostSlots", "parse_hosts", "ranks_of_hosts", "read_hostfile"]

# A name, an address, or an IPv6 address in brackets, perhaps with `user@` in front.
_HOST = r"(?P<host>(?:[\w.-]+@)?(?:\[[0-9A-Fa-f:.%\w]+\]|[A-Za-z0-9_][\w.-]*))"
_ITEM = re.compile(_HOST + r"(?::(?P<slots>\d+))?")
_KEYS = ("slots", "max_slots", "max-slots")


@dataclasses.dataclass(frozen=True, slots=True)
class HostSlots:
    """A host by its name, with its number of ranks."""

    name: str
    slots: int = 1


def parse_hosts(text: str, *, origin: str = "", slots: int = 1) -> tuple[HostSlots, ...]:
    """Read `host1:2,host2:2`.

    Args:
        origin: source of the list, for an error; "": the option -H.
        slots: number of slots of a host without one.

    Raises:
        UsageError: the text is not such a list.
    """
    return _once([_item(each.strip(), origin or f"-H {text}", slots) for each in text.split(",")])


def read_hostfile(path: Path) -> tuple[HostSlots, ...]:
    """Read a file with a host a line: `host slots=2` (Open MPI), `host:2` (MPICH), `host`.

    `#` begins a comment. `max_slots` holds in any case: no host gets more ranks than slots.

    Raises:
        UsageError: the file cannot be read, or a line has another form.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"--hostfile {path} cannot be read: {reason} [R134]") from None
    found: list[HostSlots] = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"--hostfile {path}, line {number}"
        host = _item(words[0], where)
        for word in words[1:]:
            key, _, value = word.partition("=")
            if key not in _KEYS or not value.isdecimal() or value == "0":
                raise UsageError(
                    f"{where}: {word} is not understood; write `host slots=2` or `host:2` [R134]"
                )
            if key == "slots":
                host = HostSlots(host.name, int(value))
        found.append(host)
    if not found:
        raise UsageError(f"--hostfile {path} names no host; write a host a line: `host slots=2` [R134]")
    return _once(found)


def ranks_of_hosts(hosts: Sequence[HostSlots], ranks: int | None) -> tuple[tuple[str, int], ...]:
    """Share ranks out to hosts, filled one after another; hosts without ranks are omitted.

    Args:
        ranks: number of all ranks; None: the number of slots.

    Raises:
        UsageError: more ranks than slots.
    """
    slots = sum(host.slots for host in hosts)
    if ranks is not None and ranks > slots:
        names = ",".join(f"{host.name}:{host.slots}" for host in hosts)
        raise UsageError(
            f"--ranks {ranks} is more than the {slots} slots of {names}; give the hosts more slots "
            f"(HOST:N), or --ranks {slots} [R135]"
        )
    left = slots if ranks is None else ranks
    shares: list[tuple[str, int]] = []
    for host in hosts:
        share = min(host.slots, left)
        left -= share
        if share:
            shares.append((host.name, share))
    return tuple(shares)


def _item(text: str, where: str, slots: int = 1) -> HostSlots:
    match = _ITEM.fullmatch(text)
    if match is None or match["slots"] == "0":
        raise UsageError(
            f"{where}: {text!r} is not a host with a number of ranks; write host1:2,host2:2 [R134]"
        )
    return HostSlots(match["host"].replace("[", "").replace("]", ""), int(match["slots"] or slots))


def _once(hosts: Iterable[HostSlots]) -> tuple[HostSlots, ...]:
    """Merge hosts that are named twice; their slots are added, as under MPI."""
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return tuple(HostSlots(name, count) for name, count in slots.items())
