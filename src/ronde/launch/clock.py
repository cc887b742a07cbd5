"""The clocks of a host beside those of the launcher's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ronde.launch.trouble import Trouble
from ronde.trace.launch_record import LaunchedNode

__all__ = ["Clock"]

# People compare logs by the second.
_MUCH_S = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Clock:
    """How far the clocks of a host are before those of this one, in seconds."""

    wall: float
    monotonic: float

    @classmethod
    def of_answer(cls, answer: Mapping[str, Any]) -> Clock:
        """Compare the times in a host's description of itself with those at which it came."""
        return cls(answer["time"] - answer["wall"], answer["monotonic"] - answer["received"])

    def node(self, name: str, run_id: str, pids: Mapping[int, int]) -> LaunchedNode:
        """A node with these clocks, for the record of a run."""
        return LaunchedNode(name=name, run_id=run_id, pids=pids, wall=-self.wall, monotonic=-self.monotonic)

    def trouble(self, host: str) -> Trouble | None:
        """A complaint about the time of day there; None where it is as here."""
        if abs(self.wall) < _MUCH_S:
            return None
        side = "ahead of" if self.wall > 0 else "behind"
        return Trouble(
            host=host,
            check="clock",
            what=f"the clock of {host} is {abs(self.wall):.0f} s {side} this host's, so times that the "
            "script writes there differ",
            fix="let chrony or systemd-timesyncd correct both (ronde corrects the times in what it writes)",
        )
