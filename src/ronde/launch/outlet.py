"""The surroundings of a node's ranks: sinks of their output, and rank 0's terminal."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ronde.launch.output_pump import RankOutput

__all__ = ["Outlet"]


class Outlet(ABC):
    """The side of the user, here or at the other end of a pipe.

    Attributes:
        stdin: stdin of rank 0 as `subprocess` takes it; None: that of this process. Other ranks have nothing.
        shares_group: whether rank 0 is in this process's group, to which the terminal's keys speak.
        has_terminal: whether rank 0's stdin is a terminal.
    """

    stdin: int | None
    shares_group: bool
    has_terminal: bool

    @abstractmethod
    def open(self, rank: int) -> RankOutput:
        """The channels of a rank, not yet started."""

    @property
    @abstractmethod
    def is_held(self) -> bool:
        """Tell whether ranks are held, by a debugger of rank 0 or by Ctrl-Z."""

    @abstractmethod
    def wipe(self) -> None:
        """The ranks are stopped by Ctrl-Z: leave the terminal clean."""
