"""The streams of a run's controller, which may be a terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, final

from ronde.launch.job import LaunchJob
from ronde.launch.outlet import Outlet
from ronde.launch.output_pump import RankOutput
from ronde.launch.screen import Screen
from ronde.launch.terminal import in_foreground
from ronde.launch.write_all import write_all
from ronde.trace.progress import Pulse

if TYPE_CHECKING:
    from ronde.launch.repeated_lines import RepeatedLines

__all__ = ["UsersTerminal"]


@final
class UsersTerminal(Outlet):
    """The user's side of the streams of ranks, of this process and of agents.

    Attributes:
        screen: the terminal, if there is one and progress is to be shown.
        pulse: progress of rank 0; None if it is not available.
    """

    def __init__(self, job: LaunchJob) -> None:
        self.stdin = None
        self.shares_group = in_foreground()
        self.has_terminal = os.isatty(0)
        self.screen = Screen.of_user(job.environment) if job.shown and not job.run.quiet else None
        self.pulse = Pulse.create(job.run_directory.pulse)
        self._job = job
        self._main: RankOutput | None = None
        self._in_mid_line = False

    def open(self, rank: int) -> RankOutput:
        job = self._job
        labelled = job.run.labelled
        shown = job.shown and (rank == 0 or labelled)
        output = RankOutput.open(
            job.run_directory.log(rank),
            shown=shown,
            like_user=job.shown and not labelled,
            screen=self.screen if shown and not labelled else None,
            label=f"[{rank}]" if labelled else "",
            repeated=self._repeated_lines if job.run.checkpoint and not labelled else None,
        )
        self._main = self._main or output
        return output

    def show(self, descriptor: int, data: bytes) -> None:
        """Write output of an agent's ranks to stdout (1) or stderr (2).

        Raises:
            OSError: the reader is gone.
        """
        if not self._job.shown:
            return
        if self.screen is not None and self.screen.is_behind(descriptor):
            self.screen.pass_on(descriptor, data)
        else:
            write_all(descriptor, data)
        if os.path.samestat(os.fstat(descriptor), os.fstat(2)):
            self._in_mid_line = data[-1:] != b"\n"

    @property
    def in_mid_line(self) -> bool:
        """Return whether stderr is in the middle of a line."""
        return self._in_mid_line if self._main is None else self._main.stderr_in_mid_line

    @property
    def is_held(self) -> bool:
        return self.pulse is not None and self.pulse.debugged

    def wipe(self) -> None:
        if self.screen is not None:
            self.screen.wipe()

    def _repeated_lines(self, stream: str) -> RepeatedLines:
        """Make the filter of repeated lines for a stream, by its name."""
        from ronde.launch.repeated_lines import RepeatedLines

        job = self._job
        return RepeatedLines(job.run_directory.path, stream, resumed=job.run.resume)
