"""Outlets of a node's ranks: sinks of their output, and rank 0's terminal."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ronde.launch.output_pump import RankOutput

__all__ = ["Outlet"]


class Outlet(ABC):
    """The user's side of the ranks' streams, here or behind a pipe.

    Attributes:
        stdin: stdin of rank 0 as `subprocess` takes it; None: that of this process. Other ranks get
            /dev/null.
        shares_group: whether rank 0 is in this process's group, which gets signals of the terminal's keys.
        has_terminal: whether rank 0's stdin is a terminal.
    """

    stdin: int | None
    shares_group: bool
    has_terminal: bool

    @abstractmethod
    def open(self, rank: int) -> RankOutput:
        """Return the channels of a rank that is not started yet."""

    @property
    @abstractmethod
    def is_held(self) -> bool:
        """Return whether ranks are paused, by a debugger of rank 0 or by Ctrl-Z."""

    @abstractmethod
    def wipe(self) -> None:
        """Clean the terminal before ranks are stopped by Ctrl-Z."""
