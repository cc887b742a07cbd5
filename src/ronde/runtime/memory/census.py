"""Counts the bytes of tensors by kind, each storage once."""

from __future__ import annotations

from typing import Any

import torch

from ronde.trace.resident import KINDS, Kind

__all__ = ["StorageCensus"]


class StorageCensus:
    """Count of present memory by kind; a `ronde.trace.resident.Census`.

    Args:
        on_cuda: whether this rank's tensors lie on a CUDA device, unless they are in host memory.

    Attributes:
        bytes: bytes by kind.
        on_host: part of these bytes that lies in host memory beside a device; on a CPU nothing is
            distinguished.
        coming: bytes that vary within a step, in the memory that is otherwise counted as activations:
            gathered parameters, and gradients outside of buckets, also before they are copied into one.
    """

    def __init__(self, *, on_cuda: bool = False) -> None:
        self.bytes: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self.on_host: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._on_cuda = on_cuda
        self._seen: set[int] = set()
        self._coming: dict[int, int] = {}
        self._outside: set[int] = set()

    def count(self, kind: Kind, tensor: Any) -> None:
        try:
            storage = tensor.untyped_storage()
            address, nbytes = storage.data_ptr(), storage.nbytes()
            beside = self._on_cuda and storage.device.type == "cpu"
        except (AttributeError, RuntimeError, NotImplementedError, ValueError):
            return  # sparse, fake, not initialized: no storage of its own, or none yet
        comes = kind in ("parameters", "gradients", "buckets")
        self._count(kind, address, nbytes, beside=beside, comes=comes)

    def count_at(self, kind: Kind, address: int, nbytes: int) -> None:
        self._count(kind, address, nbytes, beside=False, comes=kind in ("parameters", "gradients"))

    def _count(self, kind: Kind, address: int, nbytes: int, *, beside: bool, comes: bool) -> None:
        if not address or address in self._seen:
            return
        self._seen.add(address)
        self.bytes[kind] += nbytes
        if beside:
            self.on_host[kind] += nbytes
        elif comes and address not in self._outside:
            self._coming[address] = nbytes

    @property
    def coming(self) -> int:
        return sum(self._coming.values())

    def outside(self, tensor: Any) -> None:
        address = tensor.untyped_storage().data_ptr()
        self._outside.add(address)
        self._coming.pop(address, None)

    def add(self, kind: Kind, nbytes: int) -> None:
        self.bytes[kind] += nbytes

    def count_module(self, module: torch.nn.Module) -> None:
        """Count parameters and buffers of a module and its submodules."""
        for part in module.modules():
            for values in (part._parameters.values(), part._buffers.values()):
                for value in values:
                    if value is not None:
                        self.count("parameters", value)

    def count_state(self, value: Any) -> None:
        """Count an optimizer's state: tensors in dictionaries and lists of any depth."""
        if isinstance(value, torch.Tensor):
            self.count("optimizer", value)
        elif isinstance(value, dict):
            for each in value.values():
                self.count_state(each)
        elif isinstance(value, (list, tuple)):
            for each in value:
                self.count_state(each)
