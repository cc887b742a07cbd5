"""Steps of one rank on parameter servers that all ranks share, without waiting.

`async` and `bounded`: servers step on this rank's gradient as soon as it arrives (Dean et al. 2012), and
answer with the parameters as they are then; for `bounded` they delay a rank that is too far ahead of the
slowest (Ho et al. 2013). `geo`: the rank steps by itself, and every k steps servers add its difference,
divided by the number of ranks; the differences of other ranks are added here (GEO-SGD, Paddle).
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ronde.errors import UsageError
from ronde.parallel.servers.gradients import pack
from ronde.parallel.servers.state import ServedState
from ronde.parallel.servers.step import (
    Served,
    ServerInputs,
    ask_servers,
    can_step_on_servers,
    give_state,
    write_answer,
)
from ronde.parallel.servers.update import ServedUpdate, hash_of
from ronde.patching.patches import Patches
from ronde.patching.stacks import ADD_PARAM_GROUP
from ronde.policies.servers import over_servers
from ronde.server.dense import array_of
from ronde.server.dense_checks import name_of
from ronde.server.transport.client import Client, PendingRequest
from ronde.server.transport.wire import Opcode
from ronde.shards.elementwise import ELEMENTWISE, is_elementwise
from ronde.shards.flat import flat, flat_like
from ronde.shards.spec import ShardSpec
from ronde.sync.parameter_name import parameter_name
from ronde.tensor.context import Context

__all__ = ["GeoUpdate", "LocalUpdate", "ServedParameters"]

_KEYS = 1 << 20  # most parameters of an optimizer


class ServedParameters:
    """Keys of optimizers' parameters on servers.

    A key consists of the optimizer's number and the place in it. Ranks are not in step, but make their
    optimizers in the same order.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._known: weakref.WeakKeyDictionary[Any, list[Served]] = weakref.WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        """Number optimizers as they are made."""

        def around(plain: Callable[..., Any]) -> Callable[..., Any]:
            def add_param_group(optimizer: Any, param_group: Any) -> None:
                self._numbers.setdefault(optimizer, len(self._numbers))
                plain(optimizer, param_group)

            return add_param_group

        patches.layer(ADD_PARAM_GROUP, "servers", around)

    def number(self, optimizer: Any) -> int:
        return self._numbers.setdefault(optimizer, len(self._numbers))

    @torch.no_grad()
    def of(self, optimizer: Any) -> list[Served]:
        """Return all parameters of an optimizer, after sending new ones to the servers.

        The values are those of the rank that came first, and other ranks take them over.
        """
        known = self._known.setdefault(optimizer, [])
        tensors = [each for group in optimizer.param_groups for each in group["params"]]
        new = tensors[len(known) :]
        if new:
            served = self._divided(new, self.number(optimizer) * _KEYS + len(known))
            known += served
            self._begin([each for each in served if any(span is not None for span in each[1])])
        return known

    @property
    def all(self) -> list[tuple[Any, list[Served]]]:
        """Parameters on servers, by optimizer."""
        return list(self._known.items())

    def begin_with(self, optimizer: Any, elements: Sequence[torch.Tensor] | None) -> list[Served]:
        """Initialize servers with other values than the parameters have; see `of`.

        Args:
            elements: the values; None where another rank sends them.
        """
        tensors = [each for group in optimizer.param_groups for each in group["params"]]
        served = self._known[optimizer] = self._divided(tensors, self.number(optimizer) * _KEYS)
        if elements is not None:
            pairs = zip(elements, served, strict=True)
            self._begin([(each.to(tensor, copy=True), ranges) for each, (tensor, ranges) in pairs])
        return served

    def _divided(self, tensors: Sequence[torch.Tensor], first: int) -> list[Served]:
        keys = {id(tensor): first + place for place, tensor in enumerate(tensors)}

        found: list[Served] = []
        servers = self._client.servers
        for tensor, spec in zip(tensors, over_servers(servers).assign(tensors), strict=True):
            whole = spec or _on_first_server(tensor, servers)
            found.append((tensor, dataclasses.replace(whole, key=keys[id(tensor)])))
        return found

    def _begin(self, served: Sequence[Served]) -> None:
        for dtype in dict.fromkeys(tensor.dtype for tensor, _ in served):
            alike = [each for each in served if each[0].dtype == dtype]
            exchange(self._client, Opcode.INIT, alike, [flat(tensor) for tensor, _ in alike])


class LocalUpdate(ServedUpdate):
    """Optimizer steps on servers for `async` and `bounded`.

    Args:
        parameters: parameters with their keys on servers.
        rank: rank among all; rank 0 sends the script's writes to parameters and loaded states to servers.
    """

    def __init__(
        self,
        context: Context,
        client: Client,
        parameters: ServedParameters,
        rank: int,
        note: Callable[[str], None],
    ) -> None:
        super().__init__(context, client, over_servers(client.servers), None, note)
        self._parameters, self._rank = parameters, rank
        self._steps = 0

    def install(self, patches: Patches) -> None:
        super().install(patches)
        patches.undo(register_optimizer_step_pre_hook(_refuse_others).remove)

    def _number(self, optimizer: Any) -> int:
        return self._parameters.number(optimizer)

    def _ranges(self, tensors: Sequence[torch.Tensor]) -> dict[int, ShardSpec]:
        return {id(tensor): self._by_id[id(tensor)] for tensor in tensors}

    def _step(self, optimizer: Any, plain: Callable[..., Any]) -> None:
        self._by_id = {id(tensor): ranges for tensor, ranges in self._parameters.of(optimizer)}
        super()._step(optimizer, plain)

    def _read(self, optimizer: Any) -> Any:
        """Return a copy of the servers' state, which other ranks go on changing."""
        held = vars(optimizer)["state"]
        return held.whole() if isinstance(held, ServedState) else held

    #: Servers keep the state of optimizers.
    keeps_state = True

    @torch.no_grad()
    def stand(self) -> None:
        """Copy the servers' parameters to this rank, while no rank steps."""
        for _, served in self._parameters.all:
            # Parameters that the script has written to are sent to the servers with the next step.
            kept = [
                (tensor, ranges)
                for tensor, ranges in served
                if ranges.key not in self._sent or not self._was_written(tensor, ranges)
            ]
            pull(self._client, kept)
            self._sent.update(
                {ranges.key: hash_of(tensor) for tensor, ranges in kept if ranges.key in self._sent}
            )

    def states(self) -> list[tuple[Any, Any]]:
        """Return nothing: servers have all state."""
        return []

    def go_on(self, optimizer: Any, state: Any) -> None:
        """Return at once: `begin` sends all state to the servers."""

    def begin(self, optimizers: Sequence[Any]) -> None:
        """Send optimizers' state and parameters to the servers, from rank 0."""
        for optimizer in optimizers if self._rank == 0 else ():
            if vars(optimizer)["state"]:
                self._give(optimizer, self._parameters.of(optimizer))

    def _give(self, optimizer: Any, served: list[Served]) -> None:
        state = self._state_on_servers(optimizer, [served])
        give_state(self._client, optimizer, state.number, partial(state.leaving, mine=served))
        state.has_left()
        vars(optimizer)["state"] = state

    def there(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return nothing: parameters equal the servers' values."""
        return []

    def _ask(self, optimizer: Any, groups: Sequence[Sequence[Served]], state: ServedState) -> None:
        self._steps += 1
        served = [each for group in groups for each in group]
        mine = served if self._rank == 0 else []
        given = [
            ServerInputs("value", ranges, flat(tensor))
            for tensor, ranges in mine
            if ranges.key in self._sent and self._was_written(tensor, ranges)
        ]
        given += [
            ServerInputs("gradient", ranges, flat_like(tensor.grad, tensor))
            for tensor, ranges in served
            if tensor.grad is not None
        ]
        loaded = self._rank == 0 and state.is_new and state.has_entries
        leaving = lambda server: state.leaving(server, mine)  # noqa: E731 - of these
        ask_servers(
            self._client, optimizer, state.number, groups, given, leaving, anew=loaded, clock=self._steps
        )
        state.has_left()
        for tensor, ranges in mine:
            self._sent[ranges.key] = hash_of(tensor)


class GeoUpdate:
    """Update for `geo`: differences every k steps of an optimizer.

    Args:
        every: k.
        rank: rank among all.
        workers: number of ranks.
    """

    #: Each rank keeps the state of its optimizers.
    keeps_state = False

    def __init__(
        self, client: Client, parameters: ServedParameters, every: int, rank: int, workers: int
    ) -> None:
        self._client, self._parameters = client, parameters
        self._every, self._rank, self._workers = every, rank, workers
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        # Servers' values at the last request, with this rank's own contribution, by key.
        self._base: dict[int, torch.Tensor] = {}

    def install(self, patches: Patches) -> None:
        patches.undo(register_optimizer_step_pre_hook(self._before).remove)
        patches.undo(register_optimizer_step_post_hook(self._after).remove)

    @torch.no_grad()
    def _before(self, optimizer: Any, *_: Any) -> None:
        for tensor, ranges in self._parameters.of(optimizer):
            if ranges.key not in self._base:
                self._base[ranges.key] = flat(tensor).clone()

    @torch.no_grad()
    def _after(self, optimizer: Any, *_: Any) -> None:
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        if self._steps[optimizer] % self._every:
            return
        served = self._parameters.of(optimizer)
        for dtype in dict.fromkeys(tensor.dtype for tensor, _ in served):
            alike = [each for each in served if each[0].dtype == dtype]
            self._exchange(alike)

    def stand(self) -> None:
        """Return at once: parameters are each rank's own."""

    @torch.no_grad()
    def there(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return each parameter with the servers' value of it."""
        found: list[tuple[torch.Tensor, torch.Tensor]] = []
        for _, served in self._parameters.all:
            copies = [(tensor.detach().clone(), ranges) for tensor, ranges in served]
            pull(self._client, copies)
            found += [(tensor, copy) for (tensor, _), (copy, _) in zip(served, copies, strict=True)]
        return found

    def states(self) -> list[tuple[Any, Any]]:
        """Return steps and bases by optimizer, and on rank 0 the servers' values."""
        there = {id(tensor): copy for tensor, copy in self.there()} if self._rank == 0 else {}
        return [
            (
                optimizer,
                {
                    "steps": self._steps.get(optimizer, 0),
                    "base": [self._base[ranges.key] for _, ranges in served],
                    "there": [there[id(tensor)] for tensor, _ in served] if there else None,
                },
            )
            for optimizer, served in self._parameters.all
        ]

    def go_on(self, optimizer: Any, state: Any) -> None:
        """Load this rank's entry of `states`."""
        self._steps[optimizer] = state["steps"]
        served = self._parameters.begin_with(optimizer, state["there"])
        for (tensor, ranges), base in zip(served, state["base"], strict=True):
            self._base[ranges.key] = base.to(tensor.device, copy=True)

    def begin(self, optimizers: Sequence[Any]) -> None:
        """Return at once: each rank has loaded its state."""

    def _exchange(self, served: Sequence[Served]) -> None:
        before = [flat(tensor).clone() for tensor, _ in served]
        bases = [self._base[ranges.key] for _, ranges in served]
        own = [(now - base).div_(self._workers) for now, base in zip(before, bases, strict=True)]
        exchange(self._client, Opcode.ADD, served, own)  # parameters equal the servers' now
        for (tensor, ranges), now, base, difference in zip(served, before, bases, own, strict=True):
            there = flat(tensor).clone()
            flat(tensor).copy_(now.add_(there - base.add_(difference)))
            self._base[ranges.key] = there


def pull(client: Client, served: Sequence[Served]) -> None:
    """Write the servers' values to these tensors."""
    asked: list[tuple[int, PendingRequest]] = []
    for server, clock in enumerate(client.sequences):
        keys = [ranges.key for _, ranges in served if ranges[server] is not None]
        if keys:
            asked.append((server, client.send(server, Opcode.PULL, {"keys": keys}, clock=clock)))
    for (server, _), answer in zip(asked, client.wait([each for _, each in asked]), strict=True):
        write_answer([each for each in served if each[1][server] is not None], server, answer.arrays)


def exchange(
    client: Client, operation: Opcode, served: Sequence[Served], elements: Sequence[torch.Tensor]
) -> None:
    """Send elements of one dtype, and write the servers' answers to the parameters."""
    asked: list[tuple[int, PendingRequest, np.ndarray[Any, Any]]] = []
    for server in range(client.servers):
        there = [
            (ranges.key, each[slice(*span)])
            for (_, ranges), each in zip(served, elements, strict=True)
            if (span := ranges[server]) is not None
        ]
        if not there:
            continue
        room = pack(client, [part for _, part in there])
        dtype = there[0][1].dtype
        meta = {
            "keys": [key for key, _ in there],
            "sizes": [part.numel() for _, part in there],
            "dtype": name_of(dtype),
            "pull": True,
            **client.into(room),
        }
        array = array_of(torch.from_numpy(room).view(dtype))
        asked.append((server, client.send(server, operation, meta, [array], changes=True), room))
    for (server, _, room), answer in zip(asked, client.wait([each for _, each, _ in asked]), strict=True):
        write_answer([each for each in served if each[1][server] is not None], server, answer.arrays)
        client.give_back(room)


def _on_first_server(tensor: torch.Tensor, servers: int) -> ShardSpec:
    """Assign a tensor that is not worth cutting to the first server."""
    if tensor.is_complex():
        raise UsageError(
            f"a parameter of {tensor.dtype} cannot be on parameter servers; use --plan ps, or ddp [R424]"
        )
    return ShardSpec(((0, tensor.numel()), *[None] * servers))


def _refuse_others(optimizer: Any, *_: Any) -> None:
    tensors = (each for group in optimizer.param_groups for each in group["params"])
    sparse = next((each for each in tensors if each.grad is not None and each.grad.is_sparse), None)
    if sparse is not None:
        raise UsageError(
            f"servers that step by themselves take no sparse gradient, which {parameter_name(sparse)} has; "
            f"use --plan hybrid, which spreads the rows of embeddings, or ps, or geo,every=K, where ranks "
            "step [R424]"
        )
    if is_elementwise(optimizer) and can_step_on_servers(optimizer):
        return
    known = ", ".join(kind.__name__ for kind in ELEMENTWISE)
    raise UsageError(
        f"servers that step by themselves support {known} of torch.optim with plain numbers as "
        f"hyper-parameters, not this {type(optimizer).__name__}; use --plan geo,every=K, where ranks step, "
        "or ps [R424]"
    )
