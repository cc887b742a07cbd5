"""Traffic of a rank with others, summed over its groups and servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ronde.comm.backend import SharedMemoryBackend
from ronde.comm.process_group import Comm
from ronde.comm.single_rank import SingleRank
from ronde.trace.recorder import Travelled
from ronde.trace.step_file import ROUTES

__all__ = ["GroupTraffic"]

_SHARED, _TCP, _NCCL, _SERVER = range(len(ROUTES))


class _Client(Protocol):
    """Connections to parameter servers."""

    waited_ns: int
    exchanged_bytes: int


class GroupTraffic:
    """See `ronde.trace.recorder.TrafficSource`.

    A group's bytes all count to one route. Where they travel within a host and then between hosts, they count
    as between hosts.

    Args:
        in_background: whether the groups belong to a separate thread that holds up no script by waiting.
    """

    def __init__(
        self, groups: Sequence[Comm] = (), client: _Client | None = None, *, in_background: bool = False
    ) -> None:
        self._groups = [(group, route) for group in groups if (route := _route(group)) is not None]
        self._waiting = () if in_background else tuple(group for group, _ in self._groups)
        self._client = client

    def waited_ns(self) -> int:
        waited = 0 if self._client is None else self._client.waited_ns
        for group in self._waiting:  # no generator, because it is called at each change of phase
            waited += group.waited_ns
        return waited

    def travelled(self) -> Travelled:
        sent = [0] * len(ROUTES)
        collectives = last = late = 0
        for group, route in self._groups:
            sent[route] += group.sent_bytes
            collectives += group.collectives
            if group.check is not None:
                last += group.check.last
                late += group.check.late_ns
        if self._client is not None:
            sent[_SERVER] = self._client.exchanged_bytes
        return Travelled((sent[0], sent[1], sent[2], sent[3]), collectives, last, late)

    def listen(self, hear: Callable[[str, int, int, int], object] | None) -> None:
        for group, _ in self._groups:
            group.listener = hear


def _route(group: Comm) -> int | None:
    backend = group.backend
    if isinstance(backend, SingleRank):
        return None
    if isinstance(backend, SharedMemoryBackend):
        return _SHARED
    return _NCCL if group.on_cuda else _TCP
