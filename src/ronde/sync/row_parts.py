"""Gradients of weights whose rows are spread: each rank holds the mean of its own rows, sparse."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from ronde.comm.process_group import Comm
from ronde.sync.gradient_parts import GradientParts, Ranges
from ronde.sync.home import OnDevice

__all__ = ["Exchanged", "RowParts", "cut_rows", "exchange"]


@dataclasses.dataclass(frozen=True, slots=True)
class Exchanged:
    """What ranks have sent each other.

    Attributes:
        received: from each rank what it sent here.
        sent: how many went to each rank.
        come: how many came from each.
    """

    received: list[torch.Tensor]
    sent: list[int]
    come: list[int]


def exchange(comm: Comm, ids: torch.Tensor, firsts: Sequence[int]) -> Exchanged:
    """Send rising ids to their owners, who own contiguous ranges of them. All ranks come here.

    Args:
        ids: int64 [n].
        firsts: the first id of each rank, and behind them the number of ids.

    Raises:
        IndexError: on some rank an id is not among these; in torch's words.
    """
    bounds = torch.tensor(firsts, device=ids.device)
    sent: list[int] = torch.searchsorted(ids, bounds).diff().tolist()
    told = torch.tensor([*sent, len(ids)], device=comm.control_device)
    every = comm.all_gather(told).view(comm.world_size, -1)
    if bool((every[:, :-1].sum(1) != every[:, -1]).any()):  # on all ranks, whichever has it
        raise IndexError("index out of range in self")
    come: list[int] = every[:, comm.rank].tolist()
    return Exchanged(comm.all_to_all(ids.split(sent), come), sent, come)


class RowParts(GradientParts):
    """By leaf, the mean over ranks of the gradient of this rank's rows: sparse, numbered from its first row.

    Args:
        ranges: which elements of a leaf each rank has; None for one that every rank has all of.
    """

    def __init__(self, comm: Comm, ranges: Callable[[torch.Tensor], Ranges | None]) -> None:
        super().__init__(comm, lambda tensors: list(map(ranges, tensors)), OnDevice())
        self.ranges = ranges

    def mean_of_own(self, own: torch.Tensor, ranges: Ranges) -> torch.Tensor:
        """Send this rank's gradient to the owners of its rows. All ranks come here.

        Args:
            own: coalesced, of the shape of the whole, [rows, dim].

        Returns:
            the mean over ranks of this rank's rows, coalesced, [own rows, dim].
        """
        comm, dim = self._comm, own.shape[1]
        firsts = _first_rows(ranges, own.shape)
        ids, values = own.indices()[0], own.values()
        told = exchange(comm, ids, firsts)
        received = comm.all_to_all(values.split(told.sent), told.come)
        first, last = firsts[comm.rank : comm.rank + 2]
        mean = torch.sparse_coo_tensor(
            (torch.cat(told.received) - first).unsqueeze(0),
            torch.cat(received) / comm.world_size,
            (last - first, dim),
            check_invariants=False,
        )
        return mean.coalesce()

    @torch.no_grad()
    def whole(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Gather a gradient: from now on it is an ordinary sparse one, on every rank; None without one."""
        held = self._of(tensor)
        if held is None:
            return None
        comm, leaf, part = self._comm, held.leaf, held.part.coalesce()
        first = _first_rows(held.ranges, leaf.shape)[comm.rank]
        counts: list[int] = (
            comm.all_gather(torch.tensor([part._nnz()], device=comm.control_device)).view(-1).tolist()
        )
        with torch.inference_mode(False):  # later backwards add to it
            gradient = torch.sparse_coo_tensor(
                torch.cat(comm.all_gather_uneven(part.indices()[0] + first, counts)).unsqueeze(0),
                torch.cat(comm.all_gather_uneven(part.values(), counts)),
                leaf.shape,
                is_coalesced=True,  # ranks follow one another, as their rows do
                check_invariants=False,
            )
        self.drop(tensor)
        leaf.gradient = gradient
        return gradient


def cut_rows(gradient: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """Some rows of a whole gradient, sparse or dense, as one of a matrix of these rows."""
    if gradient.layout is torch.strided:
        return gradient[first:last]
    whole = gradient.coalesce()
    ids = whole.indices()[0]
    kept = (ids >= first) & (ids < last)
    return torch.sparse_coo_tensor(
        (ids[kept] - first).unsqueeze(0),
        whole.values()[kept],
        (last - first, *gradient.shape[1:]),
        is_coalesced=True,
        check_invariants=False,
    )


def _first_rows(ranges: Ranges, shape: torch.Size) -> list[int]:
    """The first row of each rank, and behind them the number of rows."""
    rows, dim = shape
    firsts, reached = list[int](), 0
    for span in ranges:
        firsts.append(reached)
        reached = reached if span is None else span[1] // dim
    return [*firsts, rows]
