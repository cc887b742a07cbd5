"""Comparison of tensors over ranks, by a small digest of each."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import torch

from ronde.comm.process_group import Comm
from ronde.errors import RondeError
from ronde.tensor.context import Context
from ronde.tensor.deferred import DeferredScalar, resolve
from ronde.tensor.global_tensor import GlobalTensor

__all__ = ["compare_losses", "require_alike"]

# Relative to the sum of absolute values: ranks may compute the same numbers with other roundings.
_TOLERANCE = 1e-3
# Absolute, for a loss, which may be a small difference of larger numbers.
_SLACK = 1e-4
# Sums of numbers up to this size stay finite.
_LARGEST = 1e200
# So many elements of a tensor are sampled.
_ELEMENTS = 1024


def require_alike(comm: Comm, what: str, values: Sequence[Any]) -> None:
    """End the run where ranks were given different tensors.

    A collective.

    About a thousand elements of each whole tensor are compared; integers must be equal.

    Raises:
        DivergedError: ranks differ on one host; the message has the lines of the script.
        RondeError: ranks differ on several hosts.
    """
    whole = [each for each in values if isinstance(each, torch.Tensor) and not isinstance(each, GlobalTensor)]
    _end_if_unlike(
        comm,
        what,
        whole,
        "ranks were given different batches, by threads or processes of the script, or by a data set in no "
        "fixed order or with samples that differ at each reading; take the same samples in one order [R372]",
    )


def compare_losses(context: Context, roots: Any) -> None:
    """End the run where the roots of a backward differ between ranks.

    A collective.

    If a thread of the script sets a weight of the loss, say, gradients of several losses would be mixed.
    """
    if context.script_computes():
        values = list(_values(roots))
        _end_if_unlike(
            context.comm,
            f"backward of {', '.join(f'{each.item():.6g}' for each in values if not each.dim())}",
            values,
            "ranks were given different values for a loss, by threads or processes of the script; give them "
            "by a queue, or compute them alike on all ranks [R372]",
            _SLACK,
        )


def _end_if_unlike(
    comm: Comm, what: str, values: Sequence[torch.Tensor], sentence: str, slack: float = 1e-300
) -> None:
    if not values:
        return
    rows = torch.tensor([_numbers(each) for each in values], dtype=torch.float64, device="cpu")
    mine = rows.to(comm.control_device)
    if not any(comm.votes(_differ(mine, comm.broadcast(mine.clone()), slack))):
        return
    comm.mark(f"{what} (digest {zlib.crc32(rows.numpy().tobytes()):08x})")
    comm.barrier()  # a rank that came first learns of the mark here
    raise RondeError(sentence)


def _values(roots: Any) -> Iterator[torch.Tensor]:
    if isinstance(roots, DeferredScalar):
        yield resolve(roots)
    elif type(roots) is torch.Tensor and not roots.is_meta:
        yield roots
    elif isinstance(roots, (tuple, list)):
        for each in roots:
            yield from _values(each)


def _differ(mine: torch.Tensor, main: torch.Tensor, slack: float) -> list[bool]:
    same = mine[:, 0] == main[:, 0]
    close = (mine[:, 1:] - main[:, 1:]).abs() <= _TOLERANCE * main[:, 1:2] + slack
    return (~(same & close.all(1))).tolist()


def _numbers(value: torch.Tensor) -> tuple[float, float, float]:
    """Return a checksum, a sum of absolute values, and a sum weighted by position.

    The checksum covers dtype and shape, and of integers the values: these must be equal on all ranks.
    """
    kind = str((value.dtype, tuple(value.shape))).encode()
    if value.layout is not torch.strided or value.is_nested or value.is_quantized or not value.numel():
        return float(zlib.crc32(kind)), 0.0, 0.0
    values = _some(value.detach())
    if not value.dtype.is_floating_point and not value.dtype.is_complex:
        return float(zlib.crc32(kind + values.tobytes())), 0.0, 0.0
    finite = numpy.nan_to_num(values, posinf=1e30, neginf=-1e30).clip(-_LARGEST, _LARGEST)
    weights = numpy.cos(1.7 * numpy.arange(len(finite)))
    return float(zlib.crc32(kind)), float(abs(finite).sum()), float((finite * weights).sum())


def _some(value: torch.Tensor) -> Any:
    """Return sampled elements in order; only the sampled ones are copied."""
    # An odd step does not land on the same columns of every row.
    places = torch.arange(0, value.numel(), (value.numel() // _ELEMENTS) | 1, device=value.device)
    some = value[torch.unravel_index(places, value.shape)] if value.dim() else value.reshape(1)
    some = some.resolve_conj().resolve_neg()
    if some.is_complex():
        some = torch.view_as_real(some).reshape(-1)
    return (some.double() if some.is_floating_point() else some).cpu().numpy()
