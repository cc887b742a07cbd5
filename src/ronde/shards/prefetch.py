"""Prefetch of the unit that was used next in an earlier step.

Units are used in one order, step after step. A prefetched unit travels while the model computes (as in ZeRO
stage 3 and FSDP). A wrong guess costs a message; it is the same on all ranks, because they use their units in
the same order.
"""

from __future__ import annotations

from collections.abc import Callable

from ronde.shards.unit import Unit

__all__ = ["Prefetch"]


class Prefetch:
    """Successors of units in past steps, and one unit being prefetched.

    Attributes:
        coming: the unit that is being prefetched.
    """

    def __init__(self) -> None:
        self.coming: Unit | None = None
        self._followed: dict[tuple[bool, int], Unit] = {}
        self._last: Unit | None = None

    def begin(self) -> None:
        """Begin a forward or a backward: its first unit has no predecessor."""
        self._last = None

    def note(self, unit: Unit, *, backward: bool) -> None:
        """Record that `unit` is being gathered."""
        if self._last is not None:
            self._followed[backward, self._last.number] = unit
        self._last = unit

    def next_of(self, unit: Unit, *, backward: bool) -> Unit | None:
        """Return the unit that followed `unit` last time, if it is not whole."""
        found = self._followed.get((backward, unit.number))
        return None if found is None or found.whole else found

    def start(self, unit: Unit) -> None:
        self.coming = unit
        unit.start()

    def arrived(self, unit: Unit) -> bool:
        """Return whether `unit` is being prefetched, and clear the slot."""
        if unit is not self.coming:
            return False
        self.coming = None
        return True

    def abandon(self, moved: Callable[[Unit], None]) -> None:
        """Drop the prefetched unit without using it.

        Args:
            moved: callback for a unit whose members have other memory now.
        """
        unit, self.coming = self.coming, None
        if unit is not None and unit.rest():
            moved(unit)

    def forget(self, unit: Unit) -> None:
        """Forget a dissolved unit."""
        self._followed = {key: each for key, each in self._followed.items() if each is not unit}
