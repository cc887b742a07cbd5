"""An optimizer's step on parameter servers: they have its state, and run torch's own optimizer on their part.

With each step go the hyper-parameters as the script has them now, so its schedulers reach the servers. What
servers have not got is sent to them first, each tensor by one rank: gradients that the script looked at and
may have changed, parameters that it has written to, state that it has loaded. Every rank is answered with the
new parameters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import xxhash
from torch._C import DisableTorchFunction

from ronde.parallel.cut_state import StateInParts
from ronde.parallel.division import Division
from ronde.parallel.flat import flat, flat_like, overlapping
from ronde.parallel.held_parts import HeldParts
from ronde.parallel.served_gradients import KeyedRanges, ServedGradients, name_of
from ronde.parallel.sharded_update import ShardedUpdate
from ronde.server.dense import array_of, tensor_of
from ronde.server.transport.client import Client, Request
from ronde.server.transport.wire import Operation
from ronde.sync.home import OnDevice
from ronde.tensor.context import Context

__all__ = ["ServedUpdate"]

Array = np.ndarray[Any, Any]
Served = tuple[torch.Tensor, KeyedRanges]


class ServedUpdate(ShardedUpdate):
    """Has servers make the steps of optimizers.

    Args:
        context: whose ranks share the work.
        client: the connections to the servers.
        division: over servers.
        gradients: which gradients servers have.
        note: says something to the user.
    """

    def __init__(
        self,
        context: Context,
        client: Client,
        division: Division,
        gradients: ServedGradients,
        note: Any,
    ) -> None:
        held = HeldParts(division, OnDevice(), gradients)
        super().__init__(context, held, can_step_on_servers, note)
        self._client, self._division, self._gradients = client, division, gradients
        # What this rank has sent of a parameter, or been answered: by key, a hash of it.
        self._known: dict[int, int] = {}

    def _applies(self, optimizer: Any) -> bool:
        return can_step_on_servers(optimizer) and super()._applies(optimizer)

    def _step(self, optimizer: Any, plain: Any) -> None:
        groups = [
            [each for each in group["params"] if self._held.has_gradient(each)]
            for group in optimizer.param_groups
        ]
        ranges = {
            id(tensor): each
            for tensors in groups
            for tensor, each in zip(tensors, self._division.assign(tensors), strict=True)
            if isinstance(each, KeyedRanges) and self._held.fits(tensor)
        }
        for entwined in overlapping(
            [tensor for tensors in groups for tensor in tensors if id(tensor) in ranges]
        ):
            ranges.pop(entwined, None)  # updated one after the other, which servers apart cannot do
        served = [
            (tensor, ranges[id(tensor)]) for tensors in groups for tensor in tensors if id(tensor) in ranges
        ]
        state = self._state_on_servers(optimizer, served)
        with DisableTorchFunction(), torch.no_grad():
            self._ask(
                optimizer,
                served,
                [[(t, ranges[id(t)]) for t in each if id(t) in ranges] for each in groups],
                state,
            )
        left = [[each for each in tensors if id(each) not in ranges] for tensors in groups]
        if any(left):
            _step_here(optimizer, plain, left, state)
        vars(optimizer)["state"] = state

    def _state_on_servers(self, optimizer: Any, served: Sequence[Served]) -> ServedState:
        """The state as it is on servers; what the script has of it is on the way there."""
        state = vars(optimizer)["state"]
        if not isinstance(state, ServedState):
            state = ServedState(self._client, self._number(optimizer), state)
        for tensor, ranges in served:
            state.admit(tensor, ranges)
        return state

    def _ask(
        self, optimizer: Any, served: Sequence[Served], groups: Sequence[Sequence[Served]], state: ServedState
    ) -> None:
        """One request to each server that has a part, and its answer written to the parameters."""
        mine = [
            each
            for place, each in enumerate(served)
            if place % self._context.world_size == self._context.rank
        ]
        values = [each for each in mine if self._has_changed(*each)]
        whole = [each for each in mine if self._gradients.ranges(each[0]) is not each[1]]
        asked: list[tuple[int, Request, list[Array], list[Array]]] = []
        for server in range(self._client.servers):
            there = [[each for each in group if each[1][server] is not None] for group in groups]
            if not any(there):
                continue
            told: list[list[Any]] = []
            arrays: list[Array] = []
            for name, members in (("value", values), ("gradient", whole)):
                for tensor, ranges in members:
                    span = ranges[server]
                    if span is not None:
                        source = flat(tensor) if name == "value" else flat_like(_gradient(tensor), tensor)
                        arrays.append(self._room_with(source[slice(*span)]))
                        told.append([ranges.key, name, name_of(source.dtype), span[1] - span[0]])
            own_state, of_state = state.leaving(server, mine)
            sent = [*arrays, *(self._room_with(each) for each in of_state)]
            meta = {
                "optimizer": state.number,
                "class": type(optimizer).__name__,
                "groups": [
                    {"keys": [ranges.key for _, ranges in members], "options": _options(group)}
                    for members, group in zip(there, optimizer.param_groups, strict=True)
                ],
                "anew": state.is_new,
                "values": told,
                "state": own_state,
            }
            rooms = [self._client.room(size) for size in _sizes(there, server)]
            meta |= self._client.into(*rooms)
            viewed = [array_of(each) for each in sent]
            request = self._client.send(server, Operation.STEP, meta, viewed, changes=True)
            asked.append((server, request, [each.view(torch.uint8).numpy() for each in sent], rooms))
        state.has_left()
        answers = self._client.wait([request for _, request, _, _ in asked])
        for (server, _, sent, rooms), answer in zip(asked, answers, strict=True):
            there = [each for group in groups for each in group if each[1][server] is not None]
            _write(there, server, answer.arrays)
            for room in (*sent, *rooms):
                self._client.give_back(room)
        for tensor, ranges in mine:
            self._known[ranges.key] = _hash(tensor)

    def _room_with(self, elements: torch.Tensor) -> torch.Tensor:
        """A copy that servers may read."""
        room = torch.from_numpy(self._client.room(elements.numel() * elements.dtype.itemsize))
        return room.view(elements.dtype).copy_(elements)

    def _has_changed(self, tensor: torch.Tensor, ranges: KeyedRanges) -> bool:
        """Whether the script has written to a parameter since the servers' last answer.

        By what stands in it: a script writes by ways that no version tells of.
        """
        return self._known.get(ranges.key) != _hash(tensor)


class ServedState(StateInParts):
    """The state of one optimizer, on servers.

    Args:
        number: by which servers know the optimizer.
        state: what the script has of it, which is sent to them with the next step.

    Attributes:
        local: entries of parameters that servers do not have.
        is_new: servers forget what they had of this optimizer.
    """

    def __init__(self, client: Client, number: int, state: Any) -> None:
        self._client = client
        self.number = number
        self.local: defaultdict[Any, Any] = defaultdict(dict)
        self.local.update(state)
        self.is_new = True
        # In the order in which one device would have come to them.
        self._order: dict[int, Any] = {id(key): key for key in state}
        self._served: dict[int, Served] = {}
        self._leaving: dict[int, dict[str, Any]] = {}

    def admit(self, tensor: torch.Tensor, ranges: KeyedRanges) -> None:
        """Have servers keep this parameter's entry from now on."""
        known = self._served.get(id(tensor))
        if known is not None and known[0] is tensor and known[1] is ranges:
            return
        self._served[id(tensor)] = tensor, ranges
        self._order.setdefault(id(tensor), tensor)
        if tensor in self.local:
            self._leaving[id(tensor)] = self.local.pop(tensor)

    def leaving(self, server: int, mine: Iterable[Served]) -> tuple[list[list[Any]], list[torch.Tensor]]:
        """Entries that this rank is to send to a server, as `DenseShard` reads them, and their arrays."""
        entries: list[list[Any]] = []
        arrays: list[torch.Tensor] = []
        for tensor, ranges in mine:
            span = ranges[server]
            if span is None:
                continue
            for name, value in self._leaving.get(id(tensor), {}).items():
                if not isinstance(value, torch.Tensor):
                    entries.append([ranges.key, name, None, value])
                elif not value.dim():
                    entries.append([ranges.key, name, name_of(value.dtype), value.item()])
                else:
                    entries.append([ranges.key, name, name_of(value.dtype), None])
                    arrays.append(flat_like(value, tensor)[slice(*span)])
        return entries, arrays

    def has_left(self) -> None:
        """Servers have been sent all that was leaving."""
        self._leaving.clear()
        self.is_new = False

    def whole(self) -> defaultdict[Any, Any]:
        """All entries, as one device would have them. All ranks come here."""
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
        (answer,) = self._client.wait(
            [self._client.send(server, Operation.OPTIMIZER_STATE, meta, clock=clock)]
        )
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


def can_step_on_servers(optimizer: Any) -> bool:
    """Whether what an optimizer is made with can be told to another process, and means the same there."""
    if getattr(optimizer, "grad_scale", None) is not None:
        return False  # a fused step takes GradScaler's scale off
    options = [value for group in optimizer.param_groups for value in _options(group).values()]
    return all(_is_plain(value) for value in options) and not any(
        group.get("capturable") for group in optimizer.param_groups
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """A group's hyper-parameters."""
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    gradient = tensor.grad
    assert gradient is not None
    return gradient


def _sizes(groups: Sequence[Sequence[Served]], server: int) -> list[int]:
    """Bytes of each array of a server's answer: its elements of all parameters, by dtype."""
    sizes: dict[torch.dtype, int] = {}
    for group in groups:
        for tensor, ranges in group:
            start, stop = ranges[server] or (0, 0)
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + (stop - start) * tensor.dtype.itemsize
    return list(sizes.values())


def _write(served: Sequence[Served], server: int, arrays: Sequence[Array]) -> None:
    """Take over a server's elements of parameters, which come one after another for each dtype."""
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor, ranges in served:
        by_dtype.setdefault(tensor.dtype, []).append(flat(tensor)[slice(*(ranges[server] or ()))])
    for (dtype, targets), array in zip(by_dtype.items(), arrays, strict=True):
        came = torch.from_numpy(array.reshape(-1).view(np.uint8)).view(dtype)
        torch._foreach_copy_(targets, list(came.split([each.numel() for each in targets])))


def _hash(tensor: torch.Tensor) -> int:
    elements = flat(tensor).cpu()
    return xxhash.xxh3_64_intdigest(memoryview(elements.view(torch.uint8).numpy()))


def _step_here(
    optimizer: Any, plain: Any, groups: Sequence[Sequence[torch.Tensor]], state: ServedState
) -> None:
    """Parameters that cannot be cut are updated by each rank."""
    before = [group["params"] for group in optimizer.param_groups]
    vars(optimizer)["state"] = state.local
    try:
        for group, tensors in zip(optimizer.param_groups, groups, strict=True):
            group["params"] = list(tensors)
        plain(optimizer)
    finally:
        for group, tensors in zip(optimizer.param_groups, before, strict=True):
            group["params"] = tensors
