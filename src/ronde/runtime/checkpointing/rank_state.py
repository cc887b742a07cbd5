"""State that differs between ranks, such as residuals of encoded gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from ronde.checkpoint.state import HostCopies
from ronde.comm.process_group import Comm
from ronde.plan import Plan
from ronde.tensor.tree import map_leaves

__all__ = ["RankState", "gathered", "has_place"]


class RankState(Protocol):
    """An object with separate state on each rank."""

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state: dicts and lists of tensors and plain values."""
        ...

    def load_states(self, states: Sequence[Mapping[str, Any]], rank: int, ranks: int) -> None:
        """Load the `state_dict` of each rank, perhaps of another number of ranks."""
        ...


def has_place(before: str, ranks_before: int, now: str, ranks: int) -> bool:
    """Return whether states of all ranks fit the ranks of another plan.

    With equal degrees and number of ranks each rank has its place; if every rank has the whole model, any
    rank may have any state.
    """
    one, other = (
        Plan.parse(plan).for_ranks(count).mesh for plan, count in ((before, ranks_before), (now, ranks))
    )
    if one.cuts_models is None and other.cuts_models is None:
        return True
    degrees = [(each.tensor, each.pipeline, each.context, each.expert) for each in (one, other)]
    return degrees[0] == degrees[1] and ranks_before == ranks


def gathered(comm: Comm, state: Mapping[str, Any], copies: HostCopies | None) -> list[Any]:
    """Gather the state of each rank on rank 0; [] on the others. A collective.

    Args:
        copies: storage of tensors on rank 0; None on the others.
    """
    own: list[torch.Tensor] = []
    device = comm.control_device

    def form(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return value
        own.append(value.detach().contiguous())
        return torch.empty_like(own[-1], device="meta")

    forms = comm.all_gather_object(map_leaves(form, state))
    if copies is None:
        for each in own:
            comm.send(each.to(device), 0).wait()
        return []
    states = [_filled(each, rank, comm, own, device, copies) for rank, each in enumerate(forms)]
    copies.settle()
    return states


def _filled(
    form: Any, rank: int, comm: Comm, own: Sequence[torch.Tensor], device: torch.device, copies: HostCopies
) -> Any:
    """Fill a rank's state with tensors: on rank 0 its own, or received ones."""
    count = 0

    def tensor(value: Any) -> Any:
        nonlocal count
        if not isinstance(value, torch.Tensor) or not value.is_meta:
            return value
        came = own[count] if rank == 0 else comm.receive(torch.empty_like(value, device=device), rank)
        count += 1
        return copies.of(f"rank {rank}/{count}", came)

    return map_leaves(tensor, form)
