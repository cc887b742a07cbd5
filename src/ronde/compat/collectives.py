"""Tensor collectives of the Horovod API, over one process group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ronde.comm.compressors.adasum import adasum
from ronde.comm.process_group import Comm
from ronde.comm.reductions import REDUCTIONS, reduce_into
from ronde.patching.torch_internals import foreach_copy_

__all__ = ["all_gather", "all_reduce", "all_to_all", "reduce_scatter", "zeros_for"]


def all_reduce(
    comm: Comm, tensors: Sequence[torch.Tensor], operation: str, before: float, after: float
) -> None:
    """Reduce tensors of one dtype over ranks in place, fused into one buffer.

    Args:
        tensors: contiguous tensors.
        operation: "sum", "average", "min", "max", "product", or "adasum" (applied to each tensor separately).
        before, after: scale factors, applied before and after the reduction.
    """
    flats = [tensor.view(-1) for tensor in tensors]
    flat = flats[0] if len(flats) == 1 else torch.cat(flats)
    _scale(flat, before)
    if operation in ("sum", "average"):
        comm.all_reduce(flat)
        if operation == "average" and comm.world_size > 1:
            _divide(flat, comm.world_size)
    elif flat.numel():
        gathered = list(comm.all_gather(flat).unbind(0))
        if operation == "adasum":
            flat.copy_(_adasum(gathered, [each.numel() for each in flats]))
        else:
            reduce_into(flat, gathered, REDUCTIONS[operation])
    _scale(flat, after)
    if len(flats) > 1:
        foreach_copy_(flats, list(flat.split([each.numel() for each in flats])))


def _scale(flat: torch.Tensor, factor: float) -> None:
    if factor == 1.0:
        return
    if flat.is_floating_point() or flat.is_complex():
        flat.mul_(factor)
    else:
        flat.copy_((flat.double() * factor).trunc())


def _divide(flat: torch.Tensor, count: int) -> None:
    """Divide by the number of ranks; integers are truncated towards zero, like Horovod's."""
    if flat.is_floating_point() or flat.is_complex():
        flat.div_(count)
    else:
        flat.copy_(torch.div(flat, count, rounding_mode="trunc"))


def _adasum(level: list[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
    """Combine all ranks' values ([n] each) pairwise by Adasum, neighbours first, like Horovod's tree."""
    while len(level) > 1:
        level = [adasum(a, b, sizes) for a, b in zip(level[::2], level[1::2], strict=True)]
    return level[0]


def all_gather(comm: Comm, tensor: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Concatenate the tensors [rows of a rank, ...] of all ranks."""
    return torch.cat(comm.all_gather_uneven(tensor.contiguous(), rows))


def all_to_all(
    comm: Comm, tensor: torch.Tensor, splits: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Send rows of `tensor` to ranks according to this rank's splits.

    Args:
        splits: number of rows from rank i (first index) to rank j (second index).

    Returns:
        the received rows in rank order, and their number per rank: int32 [ranks].
    """
    mine = comm.rank
    pieces = list(tensor.contiguous().split(list(splits[mine])))
    sizes = [each[mine] for each in splits]
    received = comm.all_to_all([piece.contiguous() for piece in pieces], sizes)
    return torch.cat(received), torch.tensor(sizes, dtype=torch.int32)


def reduce_scatter(
    comm: Comm, tensor: torch.Tensor, operation: str, before: float, after: float
) -> torch.Tensor:
    """Reduce `tensor` over ranks, and return this rank's share of the rows.

    If rows do not divide evenly, the first ranks have one more.
    """
    tensor = tensor.contiguous()
    if before != 1.0:
        tensor = tensor.clone()
        _scale(tensor.view(-1), before)
    pieces = tensor.tensor_split(comm.world_size)
    out = torch.empty_like(pieces[comm.rank])
    comm.reduce_scatter_async(out.view(-1), [[each.reshape(-1)] for each in pieces]).wait()
    if operation == "average":
        _divide(out.view(-1), comm.world_size)
    _scale(out.view(-1), after)
    return out


def zeros_for(dtype: str, shape: Sequence[int], device: str) -> torch.Tensor:
    """Make the zeros that a rank contributes if it has no tensor."""
    kind: Any = getattr(torch, dtype)
    return torch.zeros(tuple(shape), dtype=kind, device=device)
