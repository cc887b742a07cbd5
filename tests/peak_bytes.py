"""How many bytes of tensors are alive at most, of those that are made while one looks."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.profiler import profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["PeakBytes", "PhasePeaks"]


class PeakBytes(TorchDispatchMode):
    """Adds up storages as operations make them, and takes them off as they go.

    Attributes:
        most: the largest sum so far.
    """

    __module__ = "ronde.testing.peak_bytes"  # under a mode of a script's own a model would not be cut

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._now = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if _is_dense(leaf)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if _is_dense(leaf) and id(leaf.untyped_storage()) not in before:
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self._now += size
        self.most = max(self.most, self._now)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self._now -= size


def _is_dense(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided


class PhasePeaks:
    """Asks torch's profiler for what its allocator on the CPU has given out, whoever has asked for it.

    Memory that is mapped is none of that. Memory is counted that was allocated inside of `with`.
    """

    def __init__(self) -> None:
        self._profile: Any = profile(profile_memory=True)

    def __enter__(self) -> PhasePeaks:
        self._profile.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._profile.__exit__(*error)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with record_function(f"phase {name}"):
            yield

    def most(self) -> dict[str, int]:
        """The largest number of bytes that were there in each phase, in their order."""
        events = list(self._profile.kineto_results.events())
        changes = sorted((each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]")
        phases = sorted(
            (each.start_ns(), each.start_ns() + each.duration_ns(), each.name().removeprefix("phase "))
            for each in events
            if each.name().startswith("phase ")
        )
        found: dict[str, int] = {}
        now = place = 0
        for begin, end, name in phases:
            while place < len(changes) and changes[place][0] < begin:
                now += changes[place][1]
                place += 1
            most = now
            while place < len(changes) and changes[place][0] <= end:
                now += changes[place][1]
                most = max(most, now)
                place += 1
            found[name] = most
        return found
