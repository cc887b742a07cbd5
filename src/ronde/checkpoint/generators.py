"""States of a process's random generators, and detection of draws."""

from __future__ import annotations

from typing import Any

import torch

from ronde.checkpoint.journal import JournalEntry
from ronde.rng.device_states import device_states, set_device_states
from ronde.rng.host_generators import HostGenerators
from ronde.rng.random_state import put_back

__all__ = ["GeneratorStates", "put_generators"]


class GeneratorStates:
    """Finder of the generator states needed to skip operations that draw.

    An operation skipped in a replay draws nothing, so generators have other states after it. That matters
    only if the script draws afterwards; then the entry of the skipped operation has the states at its end.
    """

    def __init__(self) -> None:
        self._hosts = HostGenerators()
        self._entry: JournalEntry | None = None
        self._after: Any = None
        self._moved = False

    def before(self) -> Any:
        """Return the states before an operation that a replay will skip."""
        now = self._states()
        if self._moved and _differ(self._after, now):
            self.settle()
        return now

    def settle(self) -> None:
        """Store pending generator states in the last journal entry, before entries are saved.

        The script may still draw random numbers after that entry.
        """
        if self._moved and self._entry is not None:
            self._entry.random = self._after
            self._moved = False

    def after(self, entry: JournalEntry, before: Any) -> None:
        """Record the states after the operation."""
        now = self._states()
        self._moved = self._moved or _differ(before, now)
        self._entry, self._after = entry, now

    def _states(self) -> Any:
        return torch.get_rng_state(), device_states(), self._hosts.state()


def put_generators(states: Any) -> None:
    """Set the generators of torch, Python and numpy to these states."""
    cpu, devices, hosts = states
    torch.set_rng_state(cpu)
    set_device_states(devices)
    put_back(hosts)


def _differ(a: Any, b: Any) -> bool:
    if not torch.equal(a[0], b[0]) or HostGenerators.moved(a[2], b[2]):
        return True
    return len(a[1]) != len(b[1]) or any(not torch.equal(x, y) for x, y in zip(a[1], b[1]))
