"""Judges the link of each pair of hosts, and names the slowest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ronde.cluster.link_speed import LinkSpeed
from ronde.doctor.finding import Finding

__all__ = ["Pair", "judge", "rounds"]

CHECK = "link"
# Bytes per second: below it gradients of any model take longer than its steps.
_SLOW = 100e6 / 8
# Share of the fastest link's speed: a link below it would make the others wait.
_OF_FASTEST = 0.25


class Pair(NamedTuple):
    """Link as both hosts have measured it; None: the other was not reached."""

    one: str
    two: str
    at_one: LinkSpeed | None
    at_two: LinkSpeed | None


def rounds(hosts: int) -> Sequence[Sequence[tuple[int, int]]]:
    """Put all pairs of hosts into rounds of disjoint pairs (the circle method)."""
    places = [*range(hosts), *([-1] if hosts % 2 else [])]
    made: list[list[tuple[int, int]]] = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]), strict=True)
        made.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        places = [places[0], places[-1], *places[1:-1]]
    return made


def judge(pairs: Sequence[Pair]) -> Sequence[Finding]:
    """Return a finding for each slow or cut link, and one about the slowest."""
    findings: list[Finding] = []
    measured: dict[tuple[str, str], tuple[float, float]] = {}
    for pair in pairs:
        for start, end, speed in ((pair.two, pair.one, pair.at_one), (pair.one, pair.two, pair.at_two)):
            if speed is None:
                findings.append(_cut(end, start))
            else:
                measured[start, end] = (speed.latency, speed.rate)
    if not measured:
        return findings
    fastest = max(rate for _, rate in measured.values())
    slow = {way: found for way, found in measured.items() if found[1] < max(_SLOW, _OF_FASTEST * fastest)}
    findings += [
        Finding(
            check=CHECK,
            level="wrong" if rate < _SLOW else "note",
            host=start,
            summary=f"from {start} to {end}: {_told(latency, rate)}",
            fix=f"see the card's speed on both (ethtool) and who else uses the link; or leave out {end}",
        )
        for (start, end), (latency, rate) in sorted(slow.items(), key=lambda each: each[1][1])
    ]
    return [*findings, _slowest(measured)]


def _slowest(measured: Mapping[tuple[str, str], tuple[float, float]]) -> Finding:
    (start, end), (latency, rate) = min(measured.items(), key=lambda each: each[1][1])
    count = f"{len(measured)} ways between hosts measured"
    return Finding(
        check=CHECK,
        level="good",
        summary=f"{count}; the slowest is from {start} to {end}: {_told(latency, rate)}",
    )


def _cut(host: str, other: str) -> Finding:
    return Finding(
        check="connections",
        level="wrong",
        host=host,
        summary=f"{host} does not reach {other} (TCP, any port), and its ranks would have to",
        fix=f"ping {other} from {host}, and back; then look at routes and firewalls of both",
    )


def _told(latency: float, rate: float) -> str:
    bits = rate * 8
    speed = f"{bits * 1e-9:.1f} Gbit/s" if bits >= 1e9 else f"{bits * 1e-6:.1f} Mbit/s"
    return f"{speed}, {latency * 1e3:.2f} ms there and back"
