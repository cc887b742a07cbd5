"""Records the operations of a script as entries of a journal."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ronde.checkpoint.generators import GeneratorStates
from ronde.checkpoint.journal import Journal, JournalEntry
from ronde.checkpoint.outline import NoOutline, Outlines
from ronde.errors import RondeError
from ronde.runtime.checkpointing.leaves import Leaves
from ronde.runtime.checkpointing.scope import Scope

__all__ = ["REAL", "OperationRecorder"]

REAL = "computed"
"""Stands for the output of a call that must be made again, as it does more than to return something."""


class OperationRecorder:
    """Carries operations of the script out, and records their results.

    Args:
        has_gradient: whether a leaf has a gradient, perhaps in parts, without gathering it.
    """

    def __init__(
        self, journal: Journal, scope: Scope, leaves: Leaves, has_gradient: Callable[[torch.Tensor], bool]
    ) -> None:
        self._journal, self._scope, self._leaves = journal, scope, leaves
        self._has_gradient = has_gradient
        self._outlines, self._draws = Outlines(), GeneratorStates()
        self._watched: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()
        # By kind of module, whether its calls have side effects.
        self._real: dict[str, bool] = {}

    def call(self, plain: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Run a call of a module, and record its result."""
        with self._recorded("call", type(module).__name__) as entry:
            kept = _Kept(module) if self._is_to_be_watched(module) else None
            output = plain(module, *args, **kwargs)
            entry.payload = self._outline(output)
            identity = f"{type(module).__module__}.{type(module).__qualname__}"
            if kept is not None:
                self._real[identity] = self._real.get(identity, False) or kept.changed()
            if self._real.get(identity):
                entry.payload = REAL
            return output

    def computed(self, kind: str, name: str, act: Callable[[], Any]) -> Any:
        """Run an operation that returns tensors without side effects, and record it."""
        with self._recorded(kind, name) as entry:
            output = act()
            try:
                entry.payload = self._outlines.of(output)
            except NoOutline as reason:
                raise RondeError(
                    f"--checkpoint cannot record what {name} returns: {reason}; leave out --checkpoint [R519]"
                ) from None
            return output

    def backward(self, plain: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Run a backward, and record which leaves have gradients after it."""
        with self._recorded("backward", "backward") as entry:
            plain(*args, **kwargs)
            entry.payload = self._outlines.of(self._leaves.having(self._has_gradient))

    def step(self, plain: Callable[..., Any], optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Run an optimizer's step, which may call a closure, and record it."""
        closure = args[0] if args else kwargs.get("closure")
        count = 0

        def counted(*inner: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            with self._scope.of_script():
                return closure(*inner, **named)

        if closure is not None:
            args, kwargs = ((counted, *args[1:]), kwargs) if args else (args, {**kwargs, "closure": counted})
        with self._recorded("step", type(optimizer).__name__) as entry:
            value = plain(optimizer, *args, **kwargs)
            entry.payload = count, self._outlines.of(value)
            return value

    def read(self, name: str, act: Callable[[], Any]) -> Any:
        """Read from a tensor for the script, and record the value."""
        entry = self._journal.record("read", name)
        with self._scope.entry():
            entry.payload = act()
        value = entry.payload
        # The script may modify the returned value without modifying the journal.
        return value.copy() if hasattr(value, "copy") and not isinstance(value, (str, bytes)) else value

    def agreed(self, name: str, act: Callable[[], Any]) -> Any:
        """Record a value that ranks agree upon: a time, a seed."""
        entry = self._journal.record("agreed", name)
        entry.payload = act()
        return entry.payload

    def fresh(self) -> tuple[int, bytes]:
        """Return the number of entries, and the new ones encoded as one block."""
        self._draws.settle()
        return len(self._journal), self._journal.fresh()

    @contextmanager
    def _recorded(self, kind: str, name: str) -> Iterator[JournalEntry]:
        """Record one entry; its contents are skipped in a replay."""
        entry = self._journal.record(kind, name)
        with self._scope.entry():
            before = self._draws.before()
            yield entry
            self._draws.after(entry, before)

    def _outline(self, output: Any) -> bytes | str:
        try:
            return self._outlines.of(output)
        except NoOutline:
            return REAL

    def _is_to_be_watched(self, module: torch.nn.Module) -> bool:
        """Return whether to check a module for changes at this call.

        Its calls 1, 2, 4, 8 and so on are checked.
        """
        count = self._watched.get(module, 0) + 1
        self._watched[module] = count
        return count & (count - 1) == 0


class _Kept:
    """Attributes of a module, without parameters and buffers, before and after a call."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._before = self._look()

    def changed(self) -> bool:
        """Return whether the call has changed an attribute, a side effect.

        Replay must then repeat it.
        """
        return any(each._forward_hooks for each in self._module.modules()) or self._look() != self._before

    def _look(self) -> list[dict[str, Any]]:
        return [
            {key: _mark(value) for key, value in vars(each).items() if key not in _OF_TORCH}
            for each in self._module.modules()
        ]


_OF_TORCH = frozenset(vars(torch.nn.Module()))


def _mark(value: Any) -> Any:
    """Return a cheap fingerprint that changes when a value is replaced or grows."""
    if isinstance(value, (bool, int, float, str)):
        return value
    return (id(value), len(value)) if isinstance(value, (list, dict, set)) else id(value)
