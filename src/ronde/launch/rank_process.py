"""One rank's process: its start, and signals to it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from ronde.errors import LaunchError
from ronde.launch.linux_process import bind_to_parent

__all__ = ["RankProcess"]


class RankProcess:
    """A rank process, in a process group of its own or the launcher's.

    Only rank 0 of a launcher in the foreground of a terminal shares its group: it must be able to read from
    the terminal, and the terminal's keys then reach it directly.
    """

    def __init__(self, rank: int, process: subprocess.Popen[bytes], *, own_group: bool) -> None:
        self.rank = rank
        self.own_group = own_group
        self._process = process

    @classmethod
    def start(
        cls,
        rank: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        streams: tuple[int | None, int, int],
        own_group: bool,
        mask: set[signal.Signals],
        library: ctypes.CDLL,
    ) -> RankProcess:
        """Start a rank process with these streams and this signal mask.

        `streams` None: the launcher's own.

        It dies with the calling thread.
        """
        stdin, stdout, stderr = streams
        launcher = os.getpid()

        def prepare() -> None:
            bind_to_parent(library, launcher)
            if own_group:
                os.setpgid(0, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        try:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                preexec_fn=prepare,  # noqa: PLW1509 - ranks are started before any thread
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise LaunchError(
                f"rank {rank} could not be started ({error}); see `ulimit -u` and this host's free "
                "memory [R183]"
            ) from None
        return cls(rank, process, own_group=own_group)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit code, minus the signal's number for a killed process, None while it runs."""
        return self._process.returncode

    def poll(self) -> int | None:
        return self._process.poll()

    def send(self, number: int) -> None:
        """Send a signal to this process only, if it still exists."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def send_to_group(self, number: int) -> None:
        """Send a signal to the rank and its children, like a terminal's key."""
        if not self.own_group:
            self.send(number)
        elif self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
