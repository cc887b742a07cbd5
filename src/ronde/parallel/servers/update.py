"""Optimizer steps on parameter servers, which keep the state.

Servers run torch's own optimizer on their part. Each step sends the current hyper-parameters, so the script's
schedulers reach the servers. Data that servers lack is sent to them first, each tensor by one rank: gradients
that the script read and may have changed, parameters that it has written to, state that it has loaded. Every
rank receives the new parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import xxhash

from ronde.parallel.servers.gradients import ServedGradients
from ronde.parallel.servers.state import ServedState
from ronde.parallel.servers.step import Served, ServerInputs, ask_servers, can_step_on_servers
from ronde.patching.torch_internals import DisableTorchFunction
from ronde.server.transport.client import Client
from ronde.shards.flat import flat, flat_like, overlapping
from ronde.shards.optimizer_shards import OptimizerShards
from ronde.shards.partition import Partition
from ronde.shards.sharded_update import ShardedUpdate
from ronde.shards.spec import ShardSpec
from ronde.sync.memory_home import OnDevice
from ronde.tensor.context import Context

__all__ = ["ServedUpdate", "hash_of"]


class ServedUpdate(ShardedUpdate):
    """Runs the steps of optimizers on servers.

    Args:
        context: context of the ranks that share the work.
        client: connections to the servers.
        division: partition over servers.
        gradients: gradients on servers, or None.
        note: callback for a sentence to the user.
    """

    def __init__(
        self,
        context: Context,
        client: Client,
        division: Partition,
        gradients: ServedGradients | None,
        note: Callable[[str], None],
    ) -> None:
        held = OptimizerShards(division, context.rank, OnDevice(), gradients)
        super().__init__(context, held, can_step_on_servers, note)
        self._client, self._division, self._gradients = client, division, gradients
        # Hashes of parameters as this rank last sent or received them, by key.
        self._sent: dict[int, int] = {}

    def _applies(self, optimizer: Any) -> bool:
        return can_step_on_servers(optimizer) and super()._applies(optimizer)

    def _step(self, optimizer: Any, plain: Callable[..., Any]) -> None:
        groups = [
            [each for each in group["params"] if self._held.has_gradient(each)]
            for group in optimizer.param_groups
        ]
        ranges = self._ranges([tensor for tensors in groups for tensor in tensors])
        served = [[(each, ranges[id(each)]) for each in tensors if id(each) in ranges] for tensors in groups]
        state = self._state_on_servers(optimizer, served)
        with DisableTorchFunction(), torch.no_grad():
            self._ask(optimizer, served, state)
        left = [[each for each in tensors if id(each) not in ranges] for tensors in groups]
        if any(left):
            _step_here(optimizer, plain, left, state)
        vars(optimizer)["state"] = state

    def _ranges(self, tensors: Sequence[torch.Tensor]) -> dict[int, ShardSpec]:
        """Return the specs of tensors that servers can have, by id."""
        assigned = zip(tensors, self._division.assign(tensors), strict=True)
        found = {
            id(tensor): each for tensor, each in assigned if each is not None and self._held.fits(tensor)
        }
        for entwined in overlapping([tensor for tensor in tensors if id(tensor) in found]):
            del found[entwined]  # updated one after the other, which separate servers cannot do
        return found

    def _state_on_servers(self, optimizer: Any, groups: Sequence[Sequence[Served]]) -> ServedState:
        """Return the state on servers; the script's own state is sent to them."""
        state = vars(optimizer)["state"]
        if not isinstance(state, ServedState):
            state = ServedState(self._client, self._number(optimizer), state)
        for group in groups:
            for tensor, ranges in group:
                state.admit(tensor, ranges)
        return state

    def _ask(self, optimizer: Any, groups: Sequence[Sequence[Served]], state: ServedState) -> None:
        """Send one request to each server that has a part.

        Each tensor that a server lacks is sent by one rank.
        """
        served = [each for group in groups for each in group]
        ranks, rank = self._context.world_size, self._context.rank
        mine = [each for place, each in enumerate(served) if place % ranks == rank]
        given = [
            ServerInputs("value", ranges, flat(tensor))
            for tensor, ranges in mine
            if self._was_written(tensor, ranges)
        ]
        given += [
            ServerInputs("gradient", ranges, flat_like(gradient, tensor))
            for tensor, ranges in mine
            if (gradient := self._here(tensor, ranges)) is not None
        ]
        leaving = lambda server: state.leaving(server, mine)  # noqa: E731 - of these
        ask_servers(self._client, optimizer, state.number, groups, given, leaving, anew=state.is_new)
        state.has_left()
        for tensor, ranges in mine:
            self._sent[ranges.key] = hash_of(tensor)

    def _here(self, tensor: torch.Tensor, ranges: ShardSpec) -> torch.Tensor | None:
        """Return this rank's gradient if servers do not have it."""
        there = self._gradients is not None and self._gradients.spec(tensor) is ranges
        return None if there else tensor.grad

    def _was_written(self, tensor: torch.Tensor, ranges: ShardSpec) -> bool:
        """Return whether the script has written to a parameter since the last answer.

        Decided by a hash of its elements, as some writes change no version.
        """
        return self._sent.get(ranges.key) != hash_of(tensor)


def hash_of(tensor: torch.Tensor) -> int:
    """Return a hash of a parameter's elements."""
    elements = flat(tensor).cpu()
    return xxhash.xxh3_64_intdigest(elements.view(torch.uint8).numpy().data)


def _step_here(
    optimizer: Any, plain: Callable[..., Any], groups: Sequence[Sequence[torch.Tensor]], state: ServedState
) -> None:
    """Step parameters that cannot be cut, on each rank."""
    before = [group["params"] for group in optimizer.param_groups]
    vars(optimizer)["state"] = state.local
    try:
        for group, tensors in zip(optimizer.param_groups, groups, strict=True):
            group["params"] = list(tensors)
        plain(optimizer)
    finally:
        for group, tensors in zip(optimizer.param_groups, before, strict=True):
            group["params"] = tensors
