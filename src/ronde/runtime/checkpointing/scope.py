"""The extent of an entry of the journal: nothing inside is an entry itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ronde.checkpoint.host_reads import HostReads

__all__ = ["Scope"]


class Scope:
    """The extent of an entry of the journal: nothing inside is an entry itself.

    Args:
        reads: hears of what the script reads from tensors.

    Attributes:
        inside: something that is one entry is under way.
        in_steps: how many steps of optimizers call the script's closures now.
        begun: a model has been called.
    """

    def __init__(self, reads: HostReads) -> None:
        self._reads = reads
        self.inside = self.begun = False
        self.in_steps = 0

    def begin(self) -> None:
        """From the first call on values may be a model's, which a run on its way back does not have."""
        self.begun = True
        self._reads.begin()

    @contextmanager
    def entry(self) -> Iterator[None]:
        """Inside, nothing is recorded by itself."""
        self.inside = True
        try:
            with self._reads.lifted():
                yield
        finally:
            self.inside = False

    @contextmanager
    def of_script(self) -> Iterator[None]:
        """Inside an entry, the script's own code runs: a closure."""
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
