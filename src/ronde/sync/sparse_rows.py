"""Sparse gradients of row-sharded weights: exchanged, averaged, gathered and cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from ronde.comm.process_group import Comm
from ronde.sync.gradient_shards import Spans

__all__ = ["Exchanged", "cut_rows", "exchange", "gather_rows", "mean_of_rows", "sum_of_rows"]


@dataclasses.dataclass(frozen=True, slots=True)
class Exchanged:
    """Result of an exchange of ids among ranks.

    Attributes:
        received: ids from each rank.
        sent: number of ids sent to each rank.
        come: number of ids received from each rank.
    """

    received: list[torch.Tensor]
    sent: list[int]
    come: list[int]


def exchange(comm: Comm, ids: torch.Tensor, firsts: Sequence[int]) -> Exchanged:
    """Send rising ids to their owners, which own contiguous ranges. A collective.

    Args:
        ids: int64 [n].
        firsts: first id of each rank, followed by the number of ids.

    Raises:
        IndexError: an id on some rank is out of range; with torch's message.
    """
    bounds = torch.tensor(firsts, device=ids.device)
    sent: list[int] = torch.searchsorted(ids, bounds).diff().tolist()
    told = torch.tensor([*sent, len(ids)], device=comm.control_device)
    every = comm.all_gather(told).view(comm.world_size, -1)
    if bool((every[:, :-1].sum(1) != every[:, -1]).any()):  # on all ranks, whichever has it
        raise IndexError("index out of range in self")
    come: list[int] = every[:, comm.rank].tolist()
    return Exchanged(comm.all_to_all(ids.split(sent), come), sent, come)


def mean_of_rows(comm: Comm, own: torch.Tensor, spans: Spans) -> torch.Tensor:
    """Send this rank's gradient to the owners of its rows. A collective.

    Args:
        own: coalesced, of the shape of the whole, [rows, dim].
        spans: the elements of each rank, whole rows.

    Returns:
        The mean over ranks of this rank's rows, coalesced, [own rows, dim].
    """
    dim = own.shape[1]
    firsts = _first_rows(spans, own.shape)
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


def sum_of_rows(comm: Comm, own: torch.Tensor) -> torch.Tensor:
    """Sum the coalesced gradients of all ranks, [rows, ...]. A collective.

    The sum is coalesced.
    """
    counts = _counts(comm, own)
    indices = torch.cat(comm.all_gather_uneven(own.indices()[:1].t().contiguous(), counts)).t()
    values = torch.cat(comm.all_gather_uneven(own.values().view(-1, *own.shape[1:]), counts))
    return torch.sparse_coo_tensor(indices, values, own.shape, check_invariants=False).coalesce()


def gather_rows(comm: Comm, part: torch.Tensor, spans: Spans, shape: torch.Size) -> torch.Tensor:
    """Gather a sparse gradient from the rows of all ranks.

    A collective.

    Args:
        part: rows of this rank, [own rows, dim].

    Returns:
        A coalesced gradient of the whole's shape, [rows, dim].
    """
    part = part.coalesce()
    first = _first_rows(spans, shape)[comm.rank]
    counts = _counts(comm, part)
    return torch.sparse_coo_tensor(
        torch.cat(comm.all_gather_uneven(part.indices()[0] + first, counts)).unsqueeze(0),
        torch.cat(comm.all_gather_uneven(part.values(), counts)),
        shape,
        is_coalesced=True,  # ranks follow one another, as their rows do
        check_invariants=False,
    )


def cut_rows(gradient: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """Cut rows out of a whole gradient, sparse or dense, renumbered from 0."""
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


def _counts(comm: Comm, own: torch.Tensor) -> list[int]:
    """Return the number of rows in each rank's gradient. A collective."""
    return comm.all_gather(torch.tensor([own._nnz()], device=comm.control_device)).view(-1).tolist()


def _first_rows(spans: Spans, shape: torch.Size) -> list[int]:
    """Return the first row of each rank, followed by the number of rows."""
    rows, dim = shape
    firsts, reached = list[int](), 0
    for span in spans:
        firsts.append(reached)
        reached = reached if span is None else span[1] // dim
    return [*firsts, rows]
