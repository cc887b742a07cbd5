"""State of one optimizer on parameter servers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ronde.parallel.servers.step import Served
from ronde.server.dense import tensor_of
from ronde.server.dense_checks import name_of
from ronde.server.transport.client import Client
from ronde.server.transport.wire import Opcode
from ronde.shards.cut_state import StateInParts
from ronde.shards.flat import flat, flat_like
from ronde.shards.spec import ShardSpec

__all__ = ["ServedState"]


class ServedState(StateInParts):
    """Optimizer state on servers, and state that is still to be sent.

    Args:
        number: number of the optimizer on servers.
        state: the script's state of it, which is sent with the next step.

    Attributes:
        local: entries of parameters that servers do not have.
        is_new: whether servers are to forget former state of this optimizer.
    """

    def __init__(self, client: Client, number: int, state: Any) -> None:
        self._client = client
        self.number = number
        self.local: defaultdict[Any, Any] = defaultdict(dict)
        self.local.update(state)
        self.is_new = True
        # In the order in which one device would have created them.
        self._order: dict[int, Any] = {id(key): key for key in state}
        self._served: dict[int, Served] = {}
        self._leaving: dict[int, dict[str, Any]] = {}

    @property
    def has_entries(self) -> bool:
        """True while state is still to be sent to the servers."""
        return bool(self._leaving)

    def admit(self, tensor: torch.Tensor, ranges: ShardSpec) -> None:
        """Let servers keep this parameter's entry from now on."""
        known = self._served.get(id(tensor))
        if known is not None and known[0] is tensor and known[1] is ranges:
            return
        self._served[id(tensor)] = tensor, ranges
        self._order.setdefault(id(tensor), tensor)
        if tensor in self.local:
            self._leaving[id(tensor)] = self.local.pop(tensor)

    def leaving(self, server: int, mine: Iterable[Served]) -> tuple[list[list[Any]], list[torch.Tensor]]:
        """Return the entries that this rank sends to a server, and their arrays.

        Entries have the form that `DenseShard` reads.
        """
        entries: list[list[Any]] = []
        arrays: list[torch.Tensor] = []
        for tensor, ranges in mine:
            span = ranges[server]
            if span is None:
                continue
            for name, value in self._leaving.get(id(tensor), {}).items():
                if not isinstance(value, torch.Tensor):
                    entries.append([ranges.key, name, None, value])
                elif not value.dim() and (tensor.dim() or name == "step"):
                    entries.append([ranges.key, name, name_of(value.dtype), value.item()])
                else:
                    entries.append([ranges.key, name, name_of(value.dtype), None])
                    arrays.append(flat_like(value, tensor)[slice(*span)])
        return entries, arrays

    def has_left(self) -> None:
        """Record that all pending state has been sent."""
        self._leaving.clear()
        self.is_new = False

    def whole(self) -> defaultdict[Any, Any]:
        """Return all entries, as on one device."""
        found: dict[int, dict[str, Any]] = {}
        for server in range(self._client.servers):
            there = [each for each in self._served.values() if each[1][server] is not None]
            if there:
                self._read(server, there, found)
        state: defaultdict[Any, Any] = defaultdict(dict)
        for key, tensor in self._order.items():
            if key in found:
                state[tensor] = found[key]
            elif tensor in self.local:
                state[tensor] = self.local[tensor]
        state.update({key: entry for key, entry in self.local.items() if key not in state})
        return state

    def _read(self, server: int, there: Sequence[Served], found: dict[int, dict[str, Any]]) -> None:
        by_key = {ranges.key: (tensor, ranges) for tensor, ranges in there}
        meta = {"optimizer": self.number, "keys": list(by_key)}
        clock = self._client.sequences[server]
        request = self._client.send(server, Opcode.OPTIMIZER_STATE, meta, clock=clock)
        (answer,) = self._client.wait([request])
        arrays = iter(answer.arrays)
        for key, name, dtype, scalar in answer.meta["entries"]:
            tensor, ranges = by_key[key]
            entry = found.setdefault(id(tensor), {})
            if dtype is None:
                entry[name] = scalar
                continue
            kind: torch.dtype = getattr(torch, dtype)
            if scalar is not None:
                entry[name] = torch.tensor(scalar, dtype=kind)
                continue
            if name not in entry:
                entry[name] = torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=kind, device=tensor.device
                )
            flat(entry[name])[slice(*(ranges[server] or ()))].copy_(tensor_of(next(arrays), kind))
