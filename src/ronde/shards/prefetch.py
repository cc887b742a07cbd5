"""Which unit comes next: the one that came next the last time.

Units are used in one order, step after step. What is gathered ahead of its use travels while the model
computes (as in ZeRO stage 3 and FSDP). A guess that is wrong costs a message; it is the same on all ranks,
because they use their units in the same order.
"""

from __future__ import annotations

from collections.abc import Callable

from ronde.shards.unit import Unit

__all__ = ["Prefetch"]


class Prefetch:
    """Remembers who followed whom, and has one unit on its way.

    Attributes:
        coming: the unit that is on its way.
    """

    def __init__(self) -> None:
        self.coming: Unit | None = None
        self._followed: dict[tuple[bool, int], Unit] = {}
        self._last: Unit | None = None

    def begin(self) -> None:
        """A forward or a backward begins: what comes now followed nothing."""
        self._last = None

    def note(self, unit: Unit, *, backward: bool) -> None:
        """This unit is being gathered."""
        if self._last is not None:
            self._followed[backward, self._last.number] = unit
        self._last = unit

    def next_of(self, unit: Unit, *, backward: bool) -> Unit | None:
        """What followed this unit, if it is there to be gathered."""
        found = self._followed.get((backward, unit.number))
        return None if found is None or found.whole else found

    def start(self, unit: Unit) -> None:
        self.coming = unit
        unit.start()

    def arrived(self, unit: Unit) -> bool:
        """Whether this is the unit on its way, which is so no more: it is used now."""
        if unit is not self.coming:
            return False
        self.coming = None
        return True

    def abandon(self, moved: Callable[[Unit], None]) -> None:
        """Let go of what is on its way, unused.

        Args:
            moved: called with a unit whose members lie in other memory now.
        """
        unit, self.coming = self.coming, None
        if unit is not None and unit.rest():
            moved(unit)

    def forget(self, unit: Unit) -> None:
        """This unit is none any more."""
        self._followed = {key: each for key, each in self._followed.items() if each is not unit}
