"""Which collective comes next, where ranks submit tensors by name and each in its own order.

Rank 0 of a run hears each rank's requests. A tensor is ready when all members of its process set have
submitted it; what is ready is answered in one order to all of them, small all-reduces of a kind as one. The
idea is Horovod's coordinator (Sergeev and Del Balso 2018).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

__all__ = ["WORLD", "Kind", "Negotiation", "Request", "Response"]

Kind = Literal[
    "allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "join", "set", "close"
]
WORLD = 0
"""The process set of all ranks."""

# What every rank must say alike, by kind, beside dtype and device.
_SHAPE, _SHAPE_OF_ROWS = ("allreduce", "broadcast", "reducescatter"), ("allgather", "alltoall")
# Larger tensors are summed where they lie: copying them together costs more than it saves.
_LARGE = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What one rank submits.

    Attributes:
        name: by which ranks know it for the same tensor.
        dtype, device: as text ("float32", "cpu").
        operation: of a sum: "average", "sum", "adasum", "min", "max", "product".
        before, after: factors.
        root: of a broadcast.
        splits: of an all-to-all, rows for each member.
        process_set: in which it is.
        group: key and size of the group that is ready only as a whole; "" for none.
        members: of a new process set; empty for one that is taken away.
        counts: automatic names so far, of a rank that joins.
    """

    name: str
    kind: Kind
    dtype: str = ""
    device: str = "cpu"
    shape: tuple[int, ...] = ()
    nbytes: int = 0
    operation: str = ""
    before: float = 1.0
    after: float = 1.0
    root: int = -1
    splits: tuple[int, ...] = ()
    process_set: int = WORLD
    group: str = ""
    group_size: int = 0
    members: tuple[int, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """What members are told to do next, all the same.

    Attributes:
        requests: of the tensors that are exchanged together: the first member's, whose shapes are those of
            all but for their rows.
        rows: of an all-gather, by tensor the rows of each member.
        splits: of an all-to-all, the splits of each member.
        error: why nothing is exchanged.
        joined: ranks that have nothing more to submit, and take part with zeros.
        last: of a join that is complete, the rank that came last.
        process_set: the number of a new set.
        counts: of a join, the automatic names with which ranks go on.
    """

    kind: Kind
    requests: tuple[Request, ...]
    rows: tuple[tuple[int, ...], ...] = ()
    splits: tuple[tuple[int, ...], ...] = ()
    error: str = ""
    joined: tuple[int, ...] = ()
    last: int = -1
    process_set: int = WORLD
    counts: tuple[tuple[str, int], ...] = ()


@dataclasses.dataclass(slots=True)
class _Waiting:
    """A tensor that some members have submitted."""

    since: float
    by_rank: dict[int, Request] = dataclasses.field(default_factory=dict)


class Negotiation:
    """What rank 0 knows of all requests.

    Args:
        ranks: how many there are.
        most: bytes of all-reduces that are exchanged as one.
        sets: members of process sets that are there from the beginning, from number 1 on.
    """

    def __init__(self, ranks: int, most: int, sets: Sequence[Sequence[int]] = ()) -> None:
        self._ranks = ranks
        self._most = most
        self.sets: dict[int, tuple[int, ...]] = {WORLD: tuple(range(ranks))}
        self.sets |= {number: tuple(members) for number, members in enumerate(sets, 1)}
        self._next_set = len(self.sets)
        self._waiting: dict[tuple[int, str], _Waiting] = {}
        self._complete: list[tuple[int, str]] = []
        self._joined: list[int] = []
        self._counts: dict[str, int] = {}
        self._last_of: dict[int, str] = {}

    def add(self, rank: int, request: Request) -> None:
        """A rank submits a tensor."""
        self._last_of[rank] = request.name
        if request.kind == "join":
            self._joined.append(rank)
            for kind, count in request.counts:
                self._counts[kind] = max(self._counts.get(kind, 0), count)
        key = request.process_set, request.name
        waiting = self._waiting.setdefault(key, _Waiting(time.monotonic()))
        waiting.by_rank[rank] = request
        if request.kind == "join":
            for other in list(self._waiting):
                self._look(other)
        else:
            self._look(key)

    @property
    def has_ready(self) -> bool:
        return bool(self._complete)

    def take(self) -> Response | None:
        """What is to be done next; None while nothing is ready."""
        if not self._complete:
            return None
        first = self._complete[0]
        response = self._response(first)
        if response.error or response.kind != "allreduce":
            self._forget([first])
            return response
        together = [first]
        request, nbytes = response.requests[0], response.requests[0].nbytes
        requests = [request]
        for key in self._complete[1:]:
            other = self._first(key)
            fits = nbytes + other.nbytes <= self._most and max(other.nbytes, request.nbytes) <= _LARGE
            if fits and _alike(request, other) and not self._problem(key):
                together.append(key)
                requests.append(other)
                nbytes += other.nbytes
        self._forget(together)
        return response if len(requests) == 1 else dataclasses.replace(response, requests=tuple(requests))

    def members_of(self, response: Response) -> tuple[int, ...]:
        """Whom a response is for."""
        if response.kind in ("set", "join", "close"):
            return self.sets[WORLD]
        return self.sets[response.requests[0].process_set]

    def overdue(self, seconds: float) -> list[tuple[str, float, tuple[int, ...], tuple[int, ...]]]:
        """Tensors that have waited so long: name, how long, ranks that are there, ranks that are missing."""
        now, found = time.monotonic(), []
        for (number, name), waiting in self._waiting.items():
            if now - waiting.since >= seconds:
                there = tuple(sorted(waiting.by_rank))
                missing = tuple(rank for rank in self.sets.get(number, ()) if rank not in waiting.by_rank)
                found.append((name, now - waiting.since, there, missing))
        return found

    def last_of(self, rank: int) -> str:
        """The name of what a rank has submitted last; "" before."""
        return self._last_of.get(rank, "")

    def outstanding_of(self, rank: int) -> list[str]:
        """What others wait for a rank to submit."""
        return [
            name
            for (number, name), waiting in self._waiting.items()
            if rank in self.sets.get(number, ()) and rank not in waiting.by_rank
        ]

    def _look(self, key: tuple[int, str]) -> None:
        """Note a tensor that has become ready, and its group with it."""
        waiting = self._waiting[key]
        if key in self._complete or not self._is_there(key, waiting):
            return
        request = next(iter(waiting.by_rank.values()))
        if not request.group:
            self._complete.append(key)
            return
        group = [
            other
            for other, each in self._waiting.items()
            if other[0] == key[0] and next(iter(each.by_rank.values())).group == request.group
        ]
        if len(group) >= request.group_size and all(self._is_there(k, self._waiting[k]) for k in group):
            self._complete += [other for other in group if other not in self._complete]

    def _is_there(self, key: tuple[int, str], waiting: _Waiting) -> bool:
        members = self.sets.get(key[0], ())
        absent = [rank for rank in members if rank not in waiting.by_rank]
        if not absent:
            return True
        joins = next(iter(waiting.by_rank.values())).kind == "join"
        return not joins and key[0] == WORLD and all(rank in self._joined for rank in absent)

    def _first(self, key: tuple[int, str]) -> Request:
        by_rank = self._waiting[key].by_rank
        return by_rank[min(by_rank)]

    def _forget(self, keys: Iterable[tuple[int, str]]) -> None:
        for key in keys:
            self._complete.remove(key)
            del self._waiting[key]

    def _response(self, key: tuple[int, str]) -> Response:
        request, by_rank = self._first(key), self._waiting[key].by_rank
        error = self._problem(key)
        if error:
            return Response(kind=request.kind, requests=(request,), error=error)
        members = self.sets.get(key[0], ())
        fields: dict[str, Any] = {}
        if request.kind == "join":
            fields = {"last": self._joined[-1], "counts": tuple(self._counts.items())}
            self._joined.clear()
        elif request.kind == "set":
            fields = {"process_set": self._change_sets(request)}
        elif request.kind == "allgather":
            fields = {"rows": (tuple(by_rank[rank].shape[0] for rank in members),)}
        elif request.kind == "alltoall":
            fields = {"splits": tuple(by_rank[rank].splits for rank in members)}
        absent = tuple(rank for rank in members if rank not in by_rank)
        return Response(kind=request.kind, requests=(request,), joined=absent, **fields)

    def _change_sets(self, request: Request) -> int:
        if not request.members:
            number = request.root
            del self.sets[number]
            return number
        number, self._next_set = self._next_set, self._next_set + 1
        self.sets[number] = request.members
        return number

    def _problem(self, key: tuple[int, str]) -> str:
        """Why members cannot exchange a tensor; "" where they can."""
        by_rank = self._waiting[key].by_rank
        first_rank = min(by_rank)
        first = by_rank[first_rank]
        for rank, other in sorted(by_rank.items()):
            if other == first:
                continue
            for what in _to_be_equal(first.kind):
                if (mine := _said(first, what)) != (theirs := _said(other, what)):
                    return (
                        f"{first.kind} of {first.name!r}: rank {first_rank} says {what} {mine}, rank {rank} "
                        f"says {what} {theirs}; all members must say the same"
                    )
        absent = [rank for rank in self.sets.get(key[0], ()) if rank not in by_rank]
        if absent and first.kind != "allreduce":
            return (
                f"{first.kind} of {first.name!r}: rank {absent[0]} has called join(), with which only "
                f"allreduce goes"
            )
        if first.kind == "set":
            return self._problem_of_set(first)
        return ""

    def _problem_of_set(self, request: Request) -> str:
        if not request.members:
            return "" if request.root in self.sets else f"there is no process set {request.root}"
        same = [number for number, members in self.sets.items() if members == request.members]
        return f"a process set of ranks {list(request.members)} is there already: {same[0]}" if same else ""


def _to_be_equal(kind: str) -> tuple[str, ...]:
    if kind in _SHAPE:
        return "kind", "dtype", "device", "shape", "operation", "before", "after", "root"
    if kind in _SHAPE_OF_ROWS:
        return "kind", "dtype", "device", "row shape"
    return ("kind", "members", "root") if kind == "set" else ("kind",)


def _said(request: Request, what: str) -> Any:
    if what == "row shape":
        return list(request.shape[1:])
    value = getattr(request, what)
    return list(value) if isinstance(value, tuple) else value


def _alike(first: Request, other: Request) -> bool:
    """Whether two all-reduces can be one."""
    names = ("kind", "dtype", "device", "operation", "before", "after", "process_set")
    return all(getattr(first, name) == getattr(other, name) for name in names)
