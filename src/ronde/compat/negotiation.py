"""Negotiation of the order of collectives, for ranks that submit tensors by name.

Rank 0 receives each rank's requests. A tensor is ready when all members of its process set have submitted it;
ready tensors are answered to all members in one order, small all-reduces of a kind fused. The idea is
Horovod's coordinator (Sergeev and Del Balso 2018).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

__all__ = ["WORLD", "Kind", "Negotiation", "Response", "TensorRequest"]

Kind = Literal[
    "allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "join", "set", "close"
]
WORLD = 0
"""Number of the process set of all ranks."""

# Kinds whose shape, or row shape, must be equal on all ranks; see `_to_be_equal`.
_SHAPE, _SHAPE_OF_ROWS = ("allreduce", "broadcast", "reducescatter"), ("allgather", "alltoall")
# Larger tensors are not fused: copying them costs more than it saves.
_LARGE = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TensorRequest:
    """A request of one rank.

    Attributes:
        name: name by which ranks match tensors.
        dtype, device: names ("float32", "cpu").
        operation: reduction: "average", "sum", "adasum", "min", "max", "product".
        before, after: scale factors before and after the reduction.
        root: root rank of a broadcast, or number of a process set to remove.
        splits: rows for each member, for an all-to-all.
        process_set: number of the process set.
        group: name of a group that becomes ready as a whole, with `group_size` tensors; "" for none.
        members: members of a new process set; empty to remove one.
        counts: number of automatic names so far, for a join.
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
    """An instruction to all members of a process set.

    Attributes:
        requests: requests of the fused tensors, from their first member; only the rows of other members'
            shapes may differ.
        rows: number of each member's rows by tensor, for an all-gather.
        splits: splits of each member, for an all-to-all.
        error: reason why the exchange is refused; "" if it is not.
        joined: ranks that have joined, and contribute zeros.
        last: last rank of a complete join.
        process_set: number of a new or removed process set.
        counts: automatic names with which ranks continue after a join.
    """

    kind: Kind
    requests: tuple[TensorRequest, ...]
    rows: tuple[tuple[int, ...], ...] = ()
    splits: tuple[tuple[int, ...], ...] = ()
    error: str = ""
    joined: tuple[int, ...] = ()
    last: int = -1
    process_set: int = WORLD
    counts: tuple[tuple[str, int], ...] = ()


@dataclasses.dataclass(slots=True)
class _Waiting:
    """The requests of a tensor so far."""

    since: float
    by_rank: dict[int, TensorRequest] = dataclasses.field(default_factory=dict)


class Negotiation:
    """The state of all ranks' requests, on rank 0.

    Args:
        ranks: number of ranks.
        most: maximum bytes of fused all-reduces.
        sets: members of the initial process sets, numbered from 1.
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

    def add(self, rank: int, request: TensorRequest) -> None:
        """Record a rank's request."""
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
        """Return the next response, fusing small all-reduces; None if nothing is ready."""
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
        """Return the ranks that must execute a response."""
        if response.kind in ("set", "join", "close"):
            return self.sets[WORLD]
        return self.sets[response.requests[0].process_set]

    def overdue(self, seconds: float) -> list[tuple[str, float, tuple[int, ...], tuple[int, ...]]]:
        """Return tensors that wait this long: name, seconds, present ranks, missing ranks."""
        now, found = time.monotonic(), []
        for (number, name), waiting in self._waiting.items():
            if now - waiting.since >= seconds:
                there = tuple(sorted(waiting.by_rank))
                missing = tuple(rank for rank in self.sets.get(number, ()) if rank not in waiting.by_rank)
                found.append((name, now - waiting.since, there, missing))
        return found

    def last_of(self, rank: int) -> str:
        """Return the name of a rank's last request; "" before its first."""
        return self._last_of.get(rank, "")

    def outstanding_of(self, rank: int) -> list[str]:
        """Return names of tensors for which others wait for this rank."""
        return [
            name
            for (number, name), waiting in self._waiting.items()
            if rank in self.sets.get(number, ()) and rank not in waiting.by_rank
        ]

    def _look(self, key: tuple[int, str]) -> None:
        """Mark a tensor as ready once all members submitted it, together with its group."""
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

    def _first(self, key: tuple[int, str]) -> TensorRequest:
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

    def _change_sets(self, request: TensorRequest) -> int:
        if not request.members:
            number = request.root
            del self.sets[number]
            return number
        number, self._next_set = self._next_set, self._next_set + 1
        self.sets[number] = request.members
        return number

    def _problem(self, key: tuple[int, str]) -> str:
        """Return why members' requests do not match; "" if they do."""
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
                        f"says {what} {theirs}; all members must give the same [R711]"
                    )
        absent = [rank for rank in self.sets.get(key[0], ()) if rank not in by_rank]
        if absent and first.kind != "allreduce":
            return (
                f"{first.kind} of {first.name!r}: rank {absent[0]} has called join(), after which only "
                "allreduce is possible [R711]"
            )
        if first.kind == "set":
            return self._problem_of_set(first)
        return ""

    def _problem_of_set(self, request: TensorRequest) -> str:
        if not request.members:
            return "" if request.root in self.sets else f"there is no process set {request.root} [R716]"
        same = [number for number, members in self.sets.items() if members == request.members]
        return (
            f"a process set of ranks {list(request.members)} exists already: {same[0]} [R716]" if same else ""
        )


def _to_be_equal(kind: str) -> tuple[str, ...]:
    if kind in _SHAPE:
        return "kind", "dtype", "device", "shape", "operation", "before", "after", "root"
    if kind in _SHAPE_OF_ROWS:
        return "kind", "dtype", "device", "row shape"
    return ("kind", "members", "root") if kind == "set" else ("kind",)


def _said(request: TensorRequest, what: str) -> Any:
    if what == "row shape":
        return list(request.shape[1:])
    value = getattr(request, what)
    return list(value) if isinstance(value, tuple) else value


def _alike(first: TensorRequest, other: TensorRequest) -> bool:
    """Return whether two all-reduces can be fused."""
    names = ("kind", "dtype", "device", "operation", "before", "after", "process_set")
    return all(getattr(first, name) == getattr(other, name) for name in names)
