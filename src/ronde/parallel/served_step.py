"""One step of an optimizer as a request to each server that has a part of its parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ronde.patching.torch_internals import foreach_copy_
from ronde.server.dense import array_of
from ronde.server.dense_checks import name_of
from ronde.server.transport.client import Client, Request
from ronde.server.transport.wire import Operation
from ronde.shards.flat import flat
from ronde.shards.spec import ShardSpec

__all__ = ["Given", "Leaving", "Served", "ask_servers", "can_step_on_servers", "give_state"]

Array = np.ndarray[Any, Any]
Served = tuple[torch.Tensor, ShardSpec]
Leaving = Callable[[int], "tuple[list[list[Any]], list[torch.Tensor]]"]
"""For a server: entries of optimizer state that go to it, as `DenseShard` reads them, and their arrays."""


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """What a server is given for a step.

    Attributes:
        name: "value" or "gradient".
        ranges: whose.
        elements: all of them, flat, as those of the parameter lie in memory.
    """

    name: str
    ranges: ShardSpec
    elements: torch.Tensor


def ask_servers(
    client: Client,
    optimizer: Any,
    number: int,
    groups: Sequence[Sequence[Served]],
    given: Sequence[Given],
    leaving: Leaving,
    *,
    anew: bool,
    clock: int = 0,
) -> None:
    """Have servers make a step, and write the new parameters.

    Args:
        number: by which servers know the optimizer.
        groups: of each of its groups, the parameters that have a gradient.
        given: gradients and parameters that servers do not have, and this rank sends.
        leaving: state that they do not have, and this rank sends.
        anew: they forget the state that they have.
        clock: how many steps this rank has made.

    Raises:
        ServerRefused: a server cannot make the step.
        PeerLost: one does not answer.
    """
    asked: list[tuple[int, Request, list[Array]]] = []
    for server in range(client.servers):
        there = [[each for each in group if each[1][server] is not None] for group in groups]
        if not any(there):
            continue
        values, arrays = _told(client, given, server)
        state, of_state = leaving(server)
        arrays += [_room_with(client, each) for each in of_state]
        told = [
            {"keys": [ranges.key for _, ranges in members], "options": options_of(group)}
            for members, group in zip(there, optimizer.param_groups, strict=True)
        ]
        meta = _meta(optimizer, number, told, anew=anew, values=values, state=state)
        answers = [client.room(size) for size in _sizes(there, server)]
        sent = [array_of(each) for each in arrays]
        request = client.send(
            server, Operation.STEP, {**meta, **client.into(*answers)}, sent, clock=clock, changes=True
        )
        asked.append((server, request, [*(each.view(torch.uint8).numpy() for each in arrays), *answers]))
    for (server, _, rooms), answer in zip(
        asked, client.wait([request for _, request, _ in asked]), strict=True
    ):
        there = [each for group in groups for each in group if each[1][server] is not None]
        write_answer(there, server, answer.arrays)
        for room in rooms:
            client.give_back(room)


def give_state(client: Client, optimizer: Any, number: int, leaving: Leaving) -> None:
    """Have servers forget the state of an optimizer, and take this one: a step of no parameters.

    Raises: as `ask_servers`.
    """
    asked: list[Request] = []
    for server in range(client.servers):
        state, arrays = leaving(server)
        meta = _meta(optimizer, number, [], anew=True, values=[], state=state)
        own = [array_of(each.contiguous()) for each in arrays]
        asked.append(client.send(server, Operation.STEP, meta, own, changes=True))
    client.wait(asked)


def _meta(
    optimizer: Any, number: int, groups: list[Any], *, anew: bool, values: Any, state: Any
) -> dict[str, Any]:
    """Describe a step to a server; the arguments are those of `ask_servers`, as they travel."""
    return {
        "optimizer": number,
        "class": type(optimizer).__name__,
        "groups": groups,
        "anew": anew,
        "default": name_of(torch.get_default_dtype()),  # of what an optimizer counts steps in
        "values": values,
        "state": state,
    }


def can_step_on_servers(optimizer: Any) -> bool:
    """Whether what an optimizer is made with can be told to another process, and means the same there."""
    if getattr(optimizer, "grad_scale", None) is not None:
        return False  # a fused step takes GradScaler's scale off
    options = [value for group in optimizer.param_groups for value in options_of(group).values()]
    on_device = any(group.get("capturable") for group in optimizer.param_groups)
    return not on_device and all(_is_plain(value) for value in options)


def options_of(group: dict[str, Any]) -> dict[str, Any]:
    """A group's hyper-parameters."""
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


def write_answer(served: Sequence[Served], server: int, arrays: Sequence[Array]) -> None:
    """Take over a server's elements of parameters, which come one after another for each dtype."""
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor, ranges in served:
        by_dtype.setdefault(tensor.dtype, []).append(flat(tensor)[slice(*(ranges[server] or ()))])
    for (dtype, targets), array in zip(by_dtype.items(), arrays, strict=True):
        came = torch.from_numpy(array.reshape(-1).view(np.uint8)).view(dtype)
        foreach_copy_(targets, list(came.split([each.numel() for each in targets])))


def _told(client: Client, given: Sequence[Given], server: int) -> tuple[list[list[Any]], list[torch.Tensor]]:
    """Of what is given a server's elements: what they are, and memory that it may read."""
    told: list[list[Any]] = []
    arrays: list[torch.Tensor] = []
    for each in given:
        span = each.ranges[server]
        if span is not None:
            told.append([each.ranges.key, each.name, name_of(each.elements.dtype), span[1] - span[0]])
            arrays.append(_room_with(client, each.elements[slice(*span)]))
    return told, arrays


def _room_with(client: Client, elements: torch.Tensor) -> torch.Tensor:
    room = torch.from_numpy(client.room(elements.numel() * elements.dtype.itemsize))
    return room.view(elements.dtype).copy_(elements)


def _sizes(groups: Sequence[Sequence[Served]], server: int) -> list[int]:
    """Bytes of each array of a server's answer: its elements of all parameters, by dtype."""
    sizes: dict[torch.dtype, int] = {}
    for group in groups:
        for tensor, ranges in group:
            start, stop = ranges[server] or (0, 0)
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + (stop - start) * tensor.dtype.itemsize
    return list(sizes.values())


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, (bool, int, float, str))
