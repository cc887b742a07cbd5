"""Replay of a script up to a checkpoint: results come from the journal.

Models, backwards and steps of optimizers are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ronde.checkpoint.generators import put_generators
from ronde.checkpoint.journal import Journal, JournalEntry
from ronde.checkpoint.outline import build
from ronde.checkpoint.state import State
from ronde.runtime.checkpointing.leaves import Leaves
from ronde.runtime.checkpointing.recorder import REAL
from ronde.runtime.checkpointing.scope import Scope
from ronde.trace.checkpoint_manifest import CheckpointManifest

__all__ = ["Replayer"]


class Replayer:
    """Returns the recorded result of each operation of the script.

    Args:
        manifest, state: of the checkpoint.

    Attributes:
        manifest, state: as given.
    """

    def __init__(
        self, journal: Journal, scope: Scope, leaves: Leaves, manifest: CheckpointManifest, state: State
    ) -> None:
        self._journal, self._scope, self._leaves = journal, scope, leaves
        self.manifest, self.state = manifest, state

    def call(self, plain: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Recall a call of a module; repeat it if it had side effects."""
        with self._recalled("call", type(module).__name__) as entry:
            return plain(module, *args, **kwargs) if entry.payload == REAL else build(entry.payload)

    def computed(self, kind: str, name: str, act: Callable[[], Any]) -> Any:
        """Recall the result of an operation without side effects."""
        with self._recalled(kind, name) as entry:
            return build(entry.payload)

    def backward(self, plain: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Skip a backward; leaves that had gradients after it get zeros."""
        with self._recalled("backward", "backward") as entry:
            self._leaves.make_gradients(build(entry.payload))

    def step(self, plain: Callable[..., Any], optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Skip an optimizer's step; a closure that it called is called."""
        closure = args[0] if args else kwargs.get("closure")
        with self._recalled("step", type(optimizer).__name__) as entry:
            count, outline = entry.payload
            for _ in range(count):
                with self._scope.of_script(), torch.enable_grad():
                    closure()
            return build(outline)

    def read(self, name: str, act: Callable[[], Any]) -> Any:
        """Recall a value that the script has read from a tensor."""
        return self._journal.take("read", name).payload

    def agreed(self, name: str, act: Callable[[], Any]) -> Any:
        """Recall a value that ranks agreed upon: a time, a seed."""
        return self._journal.take("agreed", name).payload

    def has_come(self, boundary: str, steps: int) -> bool:
        """Return whether the script is at the place of the checkpoint."""
        manifest = self.manifest
        return self._journal.at_end and (boundary, steps) == (manifest.boundary, manifest.step)

    @contextmanager
    def _recalled(self, kind: str, name: str) -> Iterator[JournalEntry]:
        """Recall one entry around a skipped operation."""
        entry = self._journal.take(kind, name)
        with self._scope.entry():
            yield entry
            if entry.random is not None:
                put_generators(entry.random)
