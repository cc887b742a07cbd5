"""Where this rank's parts of state live: on its device, or in host memory beside it.

Parts go home and are worked on there; from home they are copied to the device where it needs them. What lives
on the device is at home where it lies, so that nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["Home", "HostMemory", "OnDevice"]


class Home(Protocol):
    """Memory for flat parts of tensors, and the way there and back.

    Attributes:
        on_host: what works there cannot use tensors of the device.
    """

    on_host: bool

    def room(self, numel: int, like: torch.Tensor) -> torch.Tensor:
        """Flat memory at home for elements of the dtype of `like`, which come from its device."""
        ...

    def lodge(self, elements: torch.Tensor) -> torch.Tensor:
        """What stands for `elements` at home: themselves if they live there, else room for a copy."""
        ...

    def keep(self, value: torch.Tensor) -> torch.Tensor:
        """A copy that stays at home, and does not travel."""
        ...

    def send_down(self, elements: torch.Tensor) -> torch.Tensor:
        """Begin to copy elements home, into new room; the next `down` waits for it."""
        ...

    def down(self, parts: Sequence[torch.Tensor], elements: Sequence[torch.Tensor]) -> None:
        """Copy `elements` home; on return whatever lives there may be read and written."""
        ...

    def up(self, elements: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> None:
        """Copy `parts` to where `elements` lie; before `parts` are written anew comes a `down`."""
        ...


class OnDevice:
    """Parts live where the device computes."""

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
    """Parts live in host memory.

    Room for what comes from a CUDA device is pinned: the device then copies by itself, at the full speed of
    its link, while the host goes on. Two things follow. The host may read what came down only when the copy
    is over, so `down` waits. And the host must not write to what is on its way up: `down`, which comes before
    any writing, waits for that too. What is freed meanwhile is safe: torch's allocators hand neither pinned
    nor device memory out again before copies from and to it are over.

    State that comes from the CPU is copied to other memory of the CPU. Commands refuse that, but it makes
    all this run, and comparable, where there is no other device.
    """

    on_host = True

    def __init__(self) -> None:
        self._rooms: set[StorageWeakRef] = set()
        self._many = 64
        # Events after what is on its way.
        self._rising: list[Any] = []
        self._falling: list[Any] = []

    def room(self, numel: int, like: torch.Tensor) -> torch.Tensor:
        pinned = like.is_cuda and numel > 0
        room = torch.empty(numel, dtype=like.dtype, device="cpu", pin_memory=pinned)
        if len(self._rooms) >= self._many:  # seldom, for it takes as long as there are rooms
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
    """The pairs that are not one tensor."""
    return ((target, source) for target, source in zip(targets, sources, strict=True) if target is not source)


def _copied(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> list[Any]:
    """Begin to copy sources to targets; for each device an event after that."""
    devices: set[torch.device] = set()
    for target, source in pairs:
        target.copy_(source, non_blocking=True)
        devices |= {each.device for each in (target, source) if each.is_cuda}
    return [torch.cuda.current_stream(device).record_event() for device in devices]


def _wait_for(events: list[Any]) -> None:
    for event in events:
        event.synchronize()
    events.clear()
