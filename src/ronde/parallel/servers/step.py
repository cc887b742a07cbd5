"""Steps of optimizers as requests to the servers of their parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.patching.torch_internals import foreach_copy_
from ronde.server.array_codec import Array
from ronde.server.dense import array_of, tensor_view
from ronde.server.dense_checks import name_of
from ronde.server.transport.client import Client, PendingRequest
from ronde.server.transport.wire import Opcode
from ronde.shards.flat import flat
from ronde.shards.spec import ShardSpec

__all__ = ["Leaving", "Served", "ServerInputs", "ask_servers", "can_step_on_servers", "give_state"]

Served = tuple[torch.Tensor, ShardSpec]
Leaving = Callable[[int], "tuple[list[list[Any]], list[torch.Tensor]]"]
"""Returns the state entries to send to a server, as `DenseShard` reads them, with arrays."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServerInputs:
    """Input that a server receives for a step.

    Attributes:
        name: "value" or "gradient".
        ranges: spec of the parameter.
        elements: all elements, flat, in the memory order of the parameter.
    """

    name: str
    ranges: ShardSpec
    elements: torch.Tensor


def ask_servers(
    client: Client,
    optimizer: Any,
    number: int,
    groups: Sequence[Sequence[Served]],
    given: Sequence[ServerInputs],
    leaving: Leaving,
    *,
    anew: bool,
    clock: int = 0,
) -> None:
    """Request a step from the servers, and write the new parameters.

    Args:
        number: number of the optimizer on servers.
        groups: parameters with a gradient, for each group of the optimizer.
        given: gradients and parameters that servers lack and this rank sends.
        leaving: function that returns state that they lack and this rank sends.
        anew: whether they discard their former state.
        clock: number of steps of this rank.

    Raises:
        ServerRefused: a server cannot make the step.
        PeerLost: a server does not answer.
    """
    asked: list[tuple[int, PendingRequest, list[Array]]] = []
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
            server, Opcode.STEP, {**meta, **client.into(*answers)}, sent, clock=clock, changes=True
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
    """Replace the state of an optimizer on servers, by a step of no parameters.

    Raises like `ask_servers`.
    """
    asked: list[PendingRequest] = []
    for server in range(client.servers):
        state, arrays = leaving(server)
        meta = _meta(optimizer, number, [], anew=True, values=[], state=state)
        own = [array_of(each.contiguous()) for each in arrays]
        asked.append(client.send(server, Opcode.STEP, meta, own, changes=True))
    client.wait(asked)


def _meta(
    optimizer: Any, number: int, groups: list[Any], *, anew: bool, values: Any, state: Any
) -> dict[str, Any]:
    """Encode the arguments of `ask_servers` as a message."""
    return {
        "optimizer": number,
        "class": type(optimizer).__name__,
        "groups": groups,
        "anew": anew,
        "default": name_of(torch.get_default_dtype()),  # dtype of step counts
        "values": values,
        "state": state,
    }


def can_step_on_servers(optimizer: Any) -> bool:
    """Return whether an optimizer can be reproduced in a server process."""
    if getattr(optimizer, "grad_scale", None) is not None:
        return False  # a fused step divides by GradScaler's scale
    options = [value for group in optimizer.param_groups for value in options_of(group).values()]
    on_device = any(group.get("capturable") for group in optimizer.param_groups)
    return not on_device and all(_is_plain(value) for value in options)


def options_of(group: dict[str, Any]) -> dict[str, Any]:
    """Return a group's hyper-parameters."""
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


def write_answer(served: Sequence[Served], server: int, arrays: Sequence[Array]) -> None:
    """Write a server's elements to parameters; they are sorted by dtype."""
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor, ranges in served:
        by_dtype.setdefault(tensor.dtype, []).append(flat(tensor)[slice(*(ranges[server] or ()))])
    for (dtype, targets), array in zip(by_dtype.items(), arrays, strict=True):
        came = tensor_view(array, dtype)
        foreach_copy_(targets, list(came.split([each.numel() for each in targets])))


def _told(
    client: Client, given: Sequence[ServerInputs], server: int
) -> tuple[list[list[Any]], list[torch.Tensor]]:
    """Return a server's elements of the inputs: descriptions, and readable memory."""
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
    """Return the bytes of each array of a server's answer, by dtype."""
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
