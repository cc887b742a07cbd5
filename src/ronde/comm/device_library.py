"""Process groups of accelerators' own libraries: NCCL, XCCL, and others that are registered with torch.

torch knows the library of each type of device, so another accelerator needs no code here.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ronde.errors import LaunchError
from ronde.patching.torch_internals import backend_options, backend_plugins

__all__ = ["device_group", "is_on_accelerator", "library_of"]


def library_of(device: str) -> str:
    """Return the name of the library for a type of device: "NCCL" for "cuda".

    Raises:
        LaunchError: torch knows none.
    """
    try:
        name = dist.get_default_backend_for_device(device).upper()
    except (RuntimeError, ValueError):  # not a type of device, and a type without a library
        name = ""
    if not name or (_built_in(name) is None and name not in backend_plugins()):
        raise LaunchError(
            f"this torch has no library that exchanges tensors on {device}; install the package that "
            'registers one with torch, or run on the CPU with CUDA_VISIBLE_DEVICES="" [R187]'
        )
    return name


def device_group(device: str, store: dist.Store, rank: int, world_size: int, timeout: timedelta) -> Any:
    """Make the process group of a type of device, by its library (collective).

    Raises:
        LaunchError: torch knows no library for it.
    """
    name = library_of(device)
    built_in = _built_in(name)
    if built_in is not None:
        options = built_in.Options()
        options._timeout = timeout
        return built_in(store, rank, world_size, options)
    plugin = backend_plugins()[name]
    if not plugin.extended_api:
        return plugin.creator_fn(store, rank, world_size, timeout)
    return plugin.creator_fn(backend_options(store, rank, world_size, timeout), None)


def is_on_accelerator(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor lies in the memory of an accelerator."""
    return tensor.device.type not in ("cpu", "meta")


def _built_in(name: str) -> Any:
    return getattr(dist, f"ProcessGroup{name}", None)
