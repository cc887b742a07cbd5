"""Scope of a journal entry: operations inside it are not recorded separately."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ronde.checkpoint.host_reads import HostReads

__all__ = ["Scope"]


class Scope:
    """Scope of a journal entry: operations inside it are not recorded separately.

    Args:
        reads: recorder of values that the script reads from tensors.

    Attributes:
        inside: whether an operation that is one entry is under way.
        in_steps: number of optimizer steps that are calling the script's closures.
        begun: whether a model has been called.
    """

    def __init__(self, reads: HostReads) -> None:
        self._reads = reads
        self.inside = self.begun = False
        self.in_steps = 0

    def begin(self) -> None:
        """Begin recording at the first call of a model.

        Values read before cannot come from a model, so a replay computes them itself.
        """
        self.begun = True
        self._reads.begin()

    @contextmanager
    def entry(self) -> Iterator[None]:
        """Suspend recording inside an entry."""
        self.inside = True
        try:
            with self._reads.lifted():
                yield
        finally:
            self.inside = False

    @contextmanager
    def of_script(self) -> Iterator[None]:
        """Resume recording inside an entry, for the script's own closure."""
        self.inside = False
        self.in_steps += 1
        if self.begun:
            self._reads.begin()
        try:
            yield
        finally:
            self._reads.end()
            self.in_steps -= 1
            self.inside = True
