"""Memory of this rank's shards of state: on its device, or on the host.

Shards are sent to their home and updated there; they are copied to the device where it needs them. Shards
that live on the device are at home already, so nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ronde.comm.device_library import is_on_accelerator

__all__ = ["Home", "HostMemory", "OnDevice"]


class Home(Protocol):
    """Memory for flat parts of tensors, and copies to and from it.

    Attributes:
        on_host: whether computations there cannot use tensors of the device.
    """

    on_host: bool

    def room(self, numel: int, like: torch.Tensor) -> torch.Tensor:
        """Allocate flat memory at home with the dtype of `like`.

        It will be filled from the device of `like`.
        """
        ...

    def lodge(self, elements: torch.Tensor) -> torch.Tensor:
        """Return `elements` if they live at home, else memory for their copy."""
        ...

    def keep(self, value: torch.Tensor) -> torch.Tensor:
        """Copy a value that stays at home, and is not moved."""
        ...

    def send_down(self, elements: torch.Tensor) -> torch.Tensor:
        """Start to copy elements home into new memory; the next `down` waits for it."""
        ...

    def down(self, parts: Sequence[torch.Tensor], elements: Sequence[torch.Tensor]) -> None:
        """Copy `elements` home; on return everything there may be read and written."""
        ...

    def up(self, elements: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> None:
        """Copy `parts` to `elements`; call `down` before writing to `parts` again."""
        ...


class OnDevice:
    """Home on the device of computation."""

    on_host = False

    def room(self, numel: int, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(numel, dtype=like.dtype, device=like.device)

    def lodge(self, elements: torch.Tensor) -> torch.Tensor:
        return elements

    def keep(self, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    def send_down(self, elements: torch.Tensor) -> torch.Tensor:
        return elements

    @torch.no_grad()
    def down(self, parts: Sequence[torch.Tensor], elements: Sequence[torch.Tensor]) -> None:
        for part, each in _apart(parts, elements):
            part.copy_(each)

    def up(self, elements: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> None:
        self.down(elements, parts)


class HostMemory:
    """Home in host memory.

    Memory for data of a CUDA device is pinned: the device then copies by itself, at the full speed of its
    link, while the host goes on. Two things follow. The host may read data copied down only when the copy is
    complete, so `down` waits. And the host must not write to data that is being copied up: `down`, which
    precedes any write, waits for that too. Memory freed meanwhile is safe: torch's allocators reuse neither
    pinned nor device memory before copies from and to it are complete.

    Where the device is a CPU, state is copied to other memory of the CPU. `ronde run` refuses such a plan;
    tests use it on machines without another device.
    """

    on_host = True

    def __init__(self) -> None:
        self._rooms: set[StorageWeakRef] = set()
        self._many = 64
        # Events after pending copies.
        self._rising: list[Any] = []
        self._falling: list[Any] = []

    def room(self, numel: int, like: torch.Tensor) -> torch.Tensor:
        pinned = is_on_accelerator(like) and numel > 0
        room = torch.empty(numel, dtype=like.dtype, device="cpu", pin_memory=pinned)
        if len(self._rooms) >= self._many:  # rarely, as it visits all allocations
            self._rooms = {each for each in self._rooms if not each.expired()}
            self._many = 2 * len(self._rooms) + 64
        self._rooms.add(StorageWeakRef(room.untyped_storage()))
        return room

    def lodge(self, elements: torch.Tensor) -> torch.Tensor:
        if StorageWeakRef(elements.untyped_storage()) in self._rooms:
            return elements
        return self.room(elements.numel(), elements)

    def keep(self, value: torch.Tensor) -> torch.Tensor:
        return value.to("cpu", copy=True)

    @torch.no_grad()
    def send_down(self, elements: torch.Tensor) -> torch.Tensor:
        part = self.room(elements.numel(), elements)
        self._falling += _copied([(part, elements)])
        return part

    @torch.no_grad()
    def down(self, parts: Sequence[torch.Tensor], elements: Sequence[torch.Tensor]) -> None:
        _wait_for(self._rising)
        self._falling += _copied(_apart(parts, elements))
        _wait_for(self._falling)

    @torch.no_grad()
    def up(self, elements: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> None:
        self._rising = [event for event in self._rising if not event.query()]
        self._rising += _copied(_apart(elements, parts))


def _apart(
    targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]
) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """Return the pairs that are not one tensor."""
    return ((target, source) for target, source in zip(targets, sources, strict=True) if target is not source)


def _copied(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> list[Any]:
    """Start to copy sources to targets; return an event per device after that."""
    devices: set[torch.device] = set()
    for target, source in pairs:
        target.copy_(source, non_blocking=True)
        devices |= {each.device for each in (target, source) if is_on_accelerator(each)}
    return [torch.accelerator.current_stream(device).record_event() for device in devices]


def _wait_for(events: list[Any]) -> None:
    for event in events:
        event.synchronize()
    events.clear()
