"""Causes in the network: silent hosts, and dead or slow links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ronde.trace.evidence import Connection, Evidence, HostFacts, SilentHost
from ronde.trace.explanation import Explanation
from ronde.trace.run_hosts import RunHost

__all__ = ["host_lost", "host_silent", "link_cut", "slow_link", "waits_for_hosts"]

# Retransmissions in a row. The kernel doubles the interval from 0.2 s on, so these take 3 s; a busy link does
# not lose so many.
_IN_VAIN = 4
# Least bytes in the send queue of a rank that waits for the network, and the rate of a slow link.
_QUEUED = 16 << 10
_SLOW = 100e6 / 8
# Failures by which ranks, or their launcher, have lost others.
_LOST = ("peer", "standstill", "host")


class _Way(NamedTuple):
    """Connections of a host's ranks to another host."""

    start: HostFacts
    ranks: Sequence[int]
    end: str
    connection: Connection


def host_lost(evidence: Evidence) -> Explanation | None:
    """Explain a run that was ended because the connection to a host was closed."""
    failure = evidence.failure
    if failure is None or failure.kind != "host":
        return None
    host = next((each for each in evidence.silent if failure.rank in each.ranks), None)
    if host is not None and host.is_lost:
        return None  # whose explanation says more
    return Explanation(
        cause="host-lost",
        rank=failure.rank,
        host="" if host is None else host.name,
        summary=evidence.said.splitlines()[0],
        fix="see whether that host is up, and who ends processes there",
        told=True,
    )


def host_silent(evidence: Evidence) -> Explanation | None:
    """Explain a host from which nothing is received, not even from its agent."""
    if evidence.failure is not None and evidence.failure.kind not in _LOST:
        return None
    silent = [each for each in evidence.silent if each.is_lost]
    if not silent:
        return None
    host = max(silent, key=lambda each: each.seconds)
    return Explanation(
        cause="host-silent",
        rank=host.ranks[0],
        host=host.name,
        summary=f"nothing has come from {host.name} ({_ranks(host.ranks)}) for {host.seconds:.0f} s",
        evidence=tuple(_in_vain(way) for way in _dead(evidence) if way.end == host.name),
        fix=f"see whether it is up, and whether the network lets both directions through: ping "
        f"{host.address or host.name}",
    )


def link_cut(evidence: Evidence) -> Explanation | None:
    """Explain bytes between two hosts that are not acknowledged, though both reach the launcher."""
    if evidence.failure is not None and evidence.failure.kind not in _LOST:
        return None
    dead = list(_dead(evidence))
    if not dead:
        return None
    start, end = dead[0].start.name, dead[0].end
    far = next((way for way in dead if way.start.name == end), None)
    ranks = far.ranks if far is not None else _ranks_on(evidence, end)
    return Explanation(
        cause="link-cut",
        rank=ranks[0] if ranks else None,
        host=end,
        summary=f"{end} does not answer {start}: it is down, or the link between them is cut"
        if any(host.name == end for host in evidence.unobserved)
        else f"the link between {start} and {end} is cut, in one direction at least",
        evidence=tuple(map(_in_vain, dead)),
        fix=f"see cable, route and firewall on both hosts: ping {dead[0].connection.peer} from {start}, and "
        f"back; ronde doctor -H {start},{end} tries all of it",
    )


def slow_link(evidence: Evidence) -> Explanation | None:
    """Explain ranks that wait while their bytes are sent slowly to another host."""
    if evidence.failure is not None and evidence.failure.kind != "standstill":
        return None
    held = [way for way in _ways(evidence) if way.connection.queued >= _QUEUED and 0 < way.start.sent < _SLOW]
    if not held or not any(rank.standing == "waiting" for rank in evidence.ranks):
        return None
    way = max(held, key=lambda each: each.connection.queued)
    return Explanation(
        cause="slow-link",
        rank=way.ranks[0],
        host=way.start.name,
        summary=f"the link from {way.start.name} to {way.end} is slow: {way.start.sent * 8e-6:.1f} Mbit/s",
        evidence=tuple(
            f"{_ranks(each.ranks)} on {each.start.name}: {each.connection.queued >> 10} KiB wait to be sent "
            f"to {each.end}"
            for each in held
        ),
        fix=f"see the card's speed (ethtool), and who else uses the link; ronde doctor -H {way.start.name},"
        f"{way.end} measures it; --plan compressor=bf16 sends less",
    )


def waits_for_hosts(evidence: Evidence) -> Explanation | None:
    """Explain ranks that all wait, in a run with hosts not observed here."""
    others = evidence.unobserved
    alive = [rank for rank in evidence.ranks if rank.is_alive]
    if evidence.failure is not None or not others or not alive:
        return None
    if any(rank.standing != "waiting" for rank in evidence.ranks):
        return None
    here = evidence.host_of(alive[0]).name or "this host"
    there = ", ".join(f"{host.name} ({_ranks(host.ranks)})" for host in others)
    reached = [host.address or host.name for host in others]
    return Explanation(
        cause="waits-for-hosts",
        rank=None,
        summary=f"all ranks of {here} wait for ranks of other hosts: {there}",
        evidence=tuple(
            f"rank {rank.rank} waits at {rank.where}: {rank.what}" for rank in alive if rank.where
        ),
        fix=f"this observer sees the ranks of {here} only: read the stderr of the first rank of each other "
        f"host, or type ronde doctor RUN_DIR there; see whether it is up: ping {reached[0]}",
    )


def _dead(evidence: Evidence) -> Iterator[_Way]:
    return (way for way in _ways(evidence) if way.connection.queued and way.connection.repeated >= _IN_VAIN)


def _ways(evidence: Evidence) -> Iterator[_Way]:
    """Return all connections between hosts of the run."""
    names = {host.address: host.name for host in _hosts(evidence) if host.address}
    for place, host in enumerate(evidence.hosts):
        ranks = [rank.rank for rank in evidence.ranks if rank.host == place]
        for connection in host.connections:
            if ranks and connection.peer in names:
                yield _Way(host, ranks, names[connection.peer], connection)


def _hosts(evidence: Evidence) -> Sequence[HostFacts | SilentHost | RunHost]:
    return (*evidence.hosts, *evidence.silent, *evidence.unobserved)


def _ranks_on(evidence: Evidence, name: str) -> Sequence[int]:
    for host in (*evidence.silent, *evidence.unobserved):
        if host.name == name:
            return host.ranks
    return [rank.rank for rank in evidence.ranks if evidence.host_of(rank).name == name]


def _in_vain(way: _Way) -> str:
    return (
        f"{_ranks(way.ranks)} on {way.start.name}: {way.connection.queued} bytes for {way.end} "
        f"({way.connection.peer}) are not acknowledged, sent {way.connection.repeated + 1} times"
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
