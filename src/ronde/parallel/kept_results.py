"""Results of some operations, kept in forward and given again when backward carries the operations out anew.

A result that is written over is not kept any longer: it is computed again. While forward runs, writes are
seen by the memory that an operation says it changes; a tensor's count of changes (`_version`) misses those of
torch's recurrent cells, which are made through parts with counts of their own, and those through `.data`.
Behind forward the count is what there is.
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

__all__ = ["Keeping", "Kept"]


class Keeping(TorchDispatchMode):
    """Notes the results of some operations, in order.

    torch has the like (`create_selective_checkpoint_contexts`). It takes every operation in backward for one
    of the model's, those by which a rank draws for the whole batch too, and allows a single backward.

    Args:
        kept: the operations.
        results: is given what they return, each tensor as a note.
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
        # As the caller would: in here, torch gives an alias a count of changes of its own.
        with enable_reentrant_dispatch():
            alias = tensor.detach()
        note = _Note(alias, _changes(alias))
        self._notes.setdefault(memory(tensor), []).append(note)
        return note


class Kept(TorchDispatchMode):
    """Gives those results in place of carrying the operations out."""

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
    """A tensor, and how often it had been changed in place; no tensor once it is known to have been."""

    tensor: torch.Tensor | None
    changes: int

    @property
    def changed(self) -> bool:
        return self.tensor is None or _changes(self.tensor) != self.changes

    def value(self) -> torch.Tensor:
        assert self.tensor is not None
        return self.tensor.detach()


def _changes(tensor: torch.Tensor) -> int:
    """How often it was changed in place, which torch does not count in inference mode."""
    return 0 if tensor.is_inference() else tensor._version
