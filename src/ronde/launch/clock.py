"""Offsets of a host's clocks from the launcher's, measured by questions and answers.

The other clock was read at some time between the question and the arrival of the answer (Cristian, 1989): the
middle is taken, with half of the round trip as error. Of several answers the fastest counts.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Mapping
from typing import Any, final

from ronde.launch.trouble import Trouble
from ronde.trace.launch_record import LaunchedNode

__all__ = ["ClockOffset", "HostClock", "launched_node", "read_clocks"]

_FIRST, _LATEST = 8, 16


# People compare logs by the second.
_MUCH_S = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class ClockOffset:
    """Seconds by which a host's clocks are ahead of the launcher's.

    Attributes:
        wall, monotonic: seconds.
        at: time of the comparison, by the host's monotonic clock.
        error: seconds by which the difference may be wrong.
    """

    wall: float
    monotonic: float
    at: float
    error: float

    def trouble(self, host: str) -> Trouble | None:
        """Return a note if the host's time of day differs, else None."""
        if abs(self.wall) < _MUCH_S:
            return None
        side = "ahead of" if self.wall > 0 else "behind"
        return Trouble(
            host=host,
            check="clock",
            what=f"the clock of {host} is {abs(self.wall):.0f} s {side} this host's, so times that the "
            "script writes there differ [R113]",
            fix="let chrony or systemd-timesyncd correct both (ronde corrects the times in what it writes)",
        )


def read_clocks(question: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a question: the question itself, and the clocks of this host."""
    return {**question, "time": time.time(), "monotonic": time.monotonic()}


@final
class HostClock:
    """Clock comparisons of one host: the first ones and the latest ones."""

    def __init__(self) -> None:
        self._first: list[ClockOffset] = []
        self._latest: collections.deque[ClockOffset] = collections.deque(maxlen=_LATEST)

    @staticmethod
    def question() -> dict[str, Any]:
        """Return a question with the present time."""
        return {"asked": time.monotonic()}

    def take(self, answer: Mapping[str, Any]) -> None:
        """Record an answer that has arrived now."""
        wall, now = time.time(), time.monotonic()
        half = (now - answer["asked"]) / 2
        at = answer["monotonic"]
        clock = ClockOffset(
            wall=answer["time"] - (wall - half), monotonic=at - (now - half), at=at, error=half
        )
        if not self.is_known:
            self._first.append(clock)
        self._latest.append(clock)

    @property
    def is_known(self) -> bool:
        """Return whether enough answers have come for the first comparison."""
        return len(self._first) == _FIRST

    @property
    def first(self) -> ClockOffset:
        """The best of the first answers."""
        return min(self._first, key=lambda clock: clock.error)

    @property
    def latest(self) -> ClockOffset:
        """The best of the latest answers."""
        return min(self._latest, key=lambda clock: clock.error)


def launched_node(name: str, run_id: str, pids: Mapping[int, int], clock: HostClock) -> LaunchedNode:
    """Make the record of a host and its clocks."""
    first, latest = clock.first, clock.latest
    between = latest.at - first.at
    return LaunchedNode(
        name=name,
        run_id=run_id,
        pids=pids,
        wall=-first.wall,
        monotonic=-first.monotonic,
        compared=first.at,
        drift=-(latest.monotonic - first.monotonic) / between if between > 0 else 0.0,
        error=max(first.error, latest.error),
    )
