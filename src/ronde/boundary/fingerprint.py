"""A number by which ranks find that they were given different batches."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy
import torch

from ronde.boundary.global_tensor import GlobalTensor

__all__ = ["fingerprint"]

_MOST = 1024


def fingerprint(values: Iterable[Any]) -> str:
    """Of all whole tensors among the values, by some thousand elements of each.

    Floats count to some three digits of a tensor's largest: ranks may compute them with other roundings.
    """
    digest = 0
    for value in values:
        if isinstance(value, torch.Tensor) and not isinstance(value, GlobalTensor):
            digest = zlib.crc32(_sampled(value), digest)
    return f"{digest:08x}"


def _sampled(value: torch.Tensor) -> bytes:
    shape = str((value.dtype, tuple(value.shape))).encode()
    if value.layout is not torch.strided or value.is_nested or value.is_quantized:
        return shape
    flat = value.detach().reshape(-1)
    some = flat[:: max(flat.numel() // _MOST, 1)].cpu()
    if some.is_complex():
        some = torch.view_as_real(some).reshape(-1)
    values = some.double().numpy() if some.is_floating_point() else some.numpy()
    return shape + (_coarse(values) if some.is_floating_point() else values).tobytes()


def _coarse(values: Any) -> Any:
    finite = numpy.nan_to_num(values)
    largest = abs(finite).max(initial=0.0)
    steps = finite if largest == 0 else finite * (512 / largest)
    # Of -0.0 and 0.0 the bytes differ.
    return 0.0 + numpy.append(steps.round(), numpy.float32(numpy.log2(largest + 1e-300) * 64).round())
