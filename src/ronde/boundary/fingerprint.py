"""Whether ranks were given the same tensors, by a few numbers of each."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from ronde.boundary.global_tensor import GlobalTensor
from ronde.comm.process_group import Comm
from ronde.errors import RondeError

__all__ = ["apart", "end", "require_alike", "unlike"]

_MOST = 1024
# Of the sum of all sizes: ranks may compute the same numbers with other roundings.
_TOLERANCE = 1e-3


def unlike(comm: Comm, values: Sequence[Any]) -> tuple[list[bool], str]:
    """Which of the whole tensors among the values differ between ranks, and what this rank has, in short.

    A collective. Some thousand elements of each are looked at: whole numbers must be the same.
    """
    whole = [each for each in values if isinstance(each, torch.Tensor) and not isinstance(each, GlobalTensor)]
    if not whole:
        return [], ""
    mine = _table(whole).to(comm.control_device)
    flags = _differ(mine, comm.broadcast(mine.clone()))
    digest = zlib.crc32(mine.cpu().numpy().tobytes())
    return [bool(count) for count in comm.votes(flags)], f"digest {digest:08x}"


def apart(values: Sequence[torch.Tensor], others: Sequence[torch.Tensor] | None) -> list[bool] | None:
    """Which of the tensors differ from the others in their places; None where these are others altogether."""
    if others is None or len(values) != len(others):
        return None
    return _differ(_table(values), _table(others)) if values else []


def require_alike(comm: Comm, what: str, values: Sequence[Any]) -> None:
    """End the run where ranks were given different tensors.

    Raises:
        DivergedError: with the lines of the script, on one host.
        RondeError: on several.
    """
    flags, digest = unlike(comm, values)
    if any(flags):
        end(comm, f"{what} ({digest})")


def end(comm: Comm, what: str) -> None:
    """Ranks have come with different things to what is the same line."""
    comm.mark(what)
    comm.barrier()  # one that came first hears of it here
    raise RondeError(
        "ranks were given different batches, by threads or processes of the script, or by a data set in no "
        "fixed order; take samples in a fixed order"
    )


def _table(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([_numbers(each) for each in values], dtype=torch.float64)


def _differ(mine: torch.Tensor, main: torch.Tensor) -> list[bool]:
    same = mine[:, 0] == main[:, 0]
    close = (mine[:, 1:] - main[:, 1:]).abs() <= _TOLERANCE * main[:, 1:2] + 1e-300
    return (~(same & close.all(1))).tolist()


def _numbers(value: torch.Tensor) -> tuple[float, float, float]:
    """A digest of what must be the same, the sum of all sizes, and a sum that goes by the places."""
    kind = str((value.dtype, tuple(value.shape))).encode()
    if value.layout is not torch.strided or value.is_nested or value.is_quantized or not value.numel():
        return float(zlib.crc32(kind)), 0.0, 0.0
    values = _some(value.detach())
    if not value.dtype.is_floating_point and not value.dtype.is_complex:
        return float(zlib.crc32(kind + values.tobytes())), 0.0, 0.0
    finite = numpy.nan_to_num(values, posinf=1e30, neginf=-1e30)
    weights = numpy.cos(1.7 * numpy.arange(len(finite)))
    return float(zlib.crc32(kind)), float(abs(finite).sum()), float((finite * weights).sum())


def _some(value: torch.Tensor) -> Any:
    """Some elements in order, none of them copied before it is chosen."""
    # An odd step does not come to the same columns of every row.
    places = torch.arange(0, value.numel(), (value.numel() // _MOST) | 1, device=value.device)
    some = value[torch.unravel_index(places, value.shape)] if value.dim() else value.reshape(1)
    some = some.resolve_conj().resolve_neg()
    if some.is_complex():
        some = torch.view_as_real(some).reshape(-1)
    return (some.double() if some.is_floating_point() else some).cpu().numpy()
