"""Results of some operations, kept in forward for recomputation in backward.

A result that is overwritten is discarded: it is computed again. While forward runs, writes are found by the
memory that an operation declares to change; a tensor's version counter (`_version`) misses those of torch's
recurrent cells, which write through views with counters of their own, and those through `.data`. After
forward only the counter is left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import torch
from torch.overrides import enable_reentrant_dispatch

from ronde.patching.torch_internals import TorchDispatchMode, pytree
from ronde.rng.draws import is_random
from ronde.rowwise.operation import written
from ronde.tensor.memory import memory

__all__ = ["Keeping", "ReplayedResults"]


class Keeping(TorchDispatchMode):
    """Records the results of some operations, in order.

    torch has something similar (`create_selective_checkpoint_contexts`). torch's version takes every
    operation in backward for one of the model, even the draws of a rank for the whole batch, and allows one
    backward only.

    Args:
        kept: operations whose results are kept.
        results: list that receives the results, each tensor as a note.
    """

    def __init__(self, kept: Collection[Any], results: list[Any]) -> None:
        super().__init__()
        self._kept = kept
        self._results = results
        self._notes: dict[int | None, list[_Note]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._notes and func._schema.is_mutable:
            for tensor in written(func, args, kwargs):
                for note in self._notes.pop(memory(tensor), ()):
                    note.tensor = None
        result = func(*args, **kwargs)
        if func in self._kept and not is_random(func, args, kwargs):
            self._results.append(pytree.tree_map_only(torch.Tensor, self._noted, result))
        return result

    def _noted(self, tensor: torch.Tensor) -> _Note:
        # Detached like the caller's tensors, because inside of a dispatch mode an alias gets a separate
        # version counter.
        with enable_reentrant_dispatch():
            alias = tensor.detach()
        note = _Note(alias, _changes(alias))
        self._notes.setdefault(memory(tensor), []).append(note)
        return note


class ReplayedResults(TorchDispatchMode):
    """Returns recorded results instead of executing the operations."""

    def __init__(self, kept: Collection[Any], results: list[Any]) -> None:
        super().__init__()
        self._kept = kept
        self._results = iter(results)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in self._kept or is_random(func, args, kwargs):
            return func(*args, **(kwargs or {}))
        result = next(self._results)
        if any(note.changed for note in pytree.tree_leaves(result) if isinstance(note, _Note)):
            return func(*args, **(kwargs or {}))
        return pytree.tree_map_only(_Note, _Note.value, result)


@dataclasses.dataclass(slots=True)
class _Note:
    """A tensor with its version; None once it was overwritten."""

    tensor: torch.Tensor | None
    changes: int

    @property
    def changed(self) -> bool:
        return self.tensor is None or _changes(self.tensor) != self.changes

    def value(self) -> torch.Tensor:
        assert self.tensor is not None
        return self.tensor.detach()


def _changes(tensor: torch.Tensor) -> int:
    """Return the number of in-place changes; 0 in inference mode, without a counter."""
    return 0 if tensor.is_inference() else tensor._version
