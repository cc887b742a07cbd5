"""Causes of ranks that take different paths through the script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ronde.trace.evidence import Evidence
from ronde.trace.exchange_label import ExchangeLabel
from ronde.trace.explanation import Explanation

__all__ = ["all_wait", "paths_differ", "shapes_differ"]

_Places = Mapping[int, tuple[str, str]]


def shapes_differ(evidence: Evidence) -> Explanation | None:
    """Explain ranks with the same operation on tensors of different form."""
    places = _diverged(evidence)
    sent = {rank: label for rank, (_, what) in places.items() if (label := ExchangeLabel.parse(what))}
    if len(places) < 2 or len(sent) < len(places):
        return None
    operations = {label.operation for label in sent.values()}
    tensors = {rank: label.tensor for rank, label in sent.items()}
    lines = {where for where, _ in places.values()}
    if len(operations) > 1 or len(set(tensors.values())) < 2 or len(lines) > 1:
        return None
    return Explanation(
        cause="shapes-differ",
        rank=_odd(tensors),
        summary=f"ranks exchange tensors of different shapes or types at {lines.pop()}",
        evidence=tuple(f"rank {rank}: {tensor}" for rank, tensor in sorted(tensors.items())),
        fix="make it from the same values on every rank: nothing in it may depend on the rank or its rows",
        told=_is_told(evidence),
    )


def paths_differ(evidence: Evidence) -> Explanation | None:
    """Explain ranks at different lines or operations."""
    places = _diverged(evidence)
    if len(places) < 2:
        return None
    told = {rank: f"{where}: {what}" for rank, (where, what) in places.items()}
    odd = _odd(told)
    who = "ranks take" if odd is None else f"rank {odd} takes"
    return Explanation(
        cause="paths-differ",
        rank=odd,
        summary=f"{who} another path through the script",
        evidence=tuple(f"rank {rank} at {each}" for rank, each in sorted(told.items())),
        fix="the first branch before these lines depends on the rank, its process, its clock or its own rows",
        told=_is_told(evidence),
    )


def all_wait(evidence: Evidence) -> Explanation | None:
    """Explain ranks that all wait, in different places."""
    if evidence.unobserved:
        return None  # one of those may be late
    waiting = {
        each.rank: f"{each.where}: {each.what}" for each in evidence.ranks if each.standing == "waiting"
    }
    if len(waiting) < 2 or len(waiting) < len(evidence.ranks) or len(set(waiting.values())) < 2:
        return None
    return Explanation(
        cause="paths-differ",
        rank=_odd(waiting),
        summary="all ranks wait for each other, at different places",
        evidence=tuple(f"rank {rank} waits at {each}" for rank, each in sorted(waiting.items())),
        fix="the first branch before these lines depends on the rank, its process, its clock or its own rows",
    )


def _diverged(evidence: Evidence) -> _Places:
    """Return the place of each rank where ranks differ.

    Ranks of one host detect this, and write it down; ranks of several hosts are compared here, by their
    latest collectives.
    """
    failure = evidence.failure
    if failure is not None and failure.kind == "diverged":
        rank = evidence.rank(failure.rank)
        error: Mapping[str, Any] = {} if rank is None or rank.error is None else rank.error
        told = {number: (where, what) for number, where, what in error.get("paths", ())}
        alike = (each for _, each in _met(evidence) if told and told.items() <= each.items())
        return next(alike, told)
    waits = evidence.reason == "stall" if failure is None else failure.kind in ("peer", "standstill")
    if not waits or len(evidence.hosts) < 2:
        return {}
    return next((places for _, places in _met(evidence) if len(set(places.values())) > 1), {})


def _is_told(evidence: Evidence) -> bool:
    """Return whether the failure report says so already, as on a single host."""
    failure = evidence.failure
    return failure is not None and failure.kind == "diverged" and len(evidence.hosts) == 1


def _met(evidence: Evidence) -> Sequence[tuple[float, _Places]]:
    """List the collectives of ranks by number, with their ages, the oldest first."""
    met: dict[tuple[str, int], dict[int, tuple[str, str]]] = {}
    ages: dict[tuple[str, int], float] = {}
    for rank in evidence.ranks:
        for each in rank.collectives:
            key = (each.group, each.number)
            met.setdefault(key, {})[rank.rank] = (each.where, each.what)
            ages[key] = max(each.entered, ages.get(key, 0.0))
    return sorted(((ages[key], places) for key, places in met.items()), key=lambda each: -each[0])


def _odd(told: Mapping[int, str]) -> int | None:
    """Return the one rank that differs from all others; None if unclear."""
    counts = Counter(told.values())
    if len(counts) != 2 or min(counts.values()) != 1 or max(counts.values()) < 2:
        return None
    return next(rank for rank, each in told.items() if counts[each] == 1)
