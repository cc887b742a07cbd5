"""Watches the ranks of one run until all are gone: passes signals on, and ends peers of a failed rank.

After the first failure there is a timetable (seconds since it was noticed), for nobody waits long
for a rank that waits for a dead one:

    0.1   a rank that says itself that it lost its peers is asked to end (SIGTERM)
    0.2   any other rank is, but
    0.8   rank 0, which may be about to meet the same error and to print it
    10    a rank with an error of its own: it is finishing (uploads, exit handlers)
    +0.5  whoever was asked and is still there is killed

After Ctrl-C or SIGTERM the script decides, as under plain python. Only when some rank is gone by it
do the others follow: rank 0, which may be saving, within 10 s.
Once a debugger has been opened on rank 0, the terminal's Ctrl-C is for that rank alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence

from ronde.launch.failure_report import (
    ErrorFile,
    RankDeath,
    RankFailure,
    failure_beside,
    first_failure,
    read_error,
    shell_code,
)
from ronde.launch.rank_process import RankProcess
from ronde.launch.servers import Servers
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.standstill import Standstill
from ronde.launch.sweep import leftovers
from ronde.launch.witness import Witness
from ronde.trace.run_directory import RunDirectory

__all__ = ["Supervisor"]

PEER_PATIENCE_S = 0.1
PATIENCE_S = 0.2
MAIN_PATIENCE_S = 0.8
OWN_ERROR_PATIENCE_S = 10.0
INTERRUPTED_PATIENCE_S = 1.0
INTERRUPTED_MAIN_PATIENCE_S = 10.0
TERMINATION_S = 0.5

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Supervisor:
    """The ranks of one run, and what is known about their ends."""

    def __init__(  # noqa: PLR0913 - what it watches, and whom it tells
        self,
        ranks: Sequence[RankProcess],
        directory: RunDirectory,
        inbox: SignalInbox,
        *,
        on_resize: Callable[[], object],
        on_stop: Callable[[], object],
        debugged: Callable[[], bool],
        waiting: Standstill,
        witness: Witness,
        servers: Servers | None = None,
        spares: Callable[[RankDeath], bool] = lambda death: False,
        news: Callable[[RankDeath | ErrorFile], object] = lambda of_rank: None,
        alone: bool = True,
    ) -> None:
        """`news` hears of each rank's end and error at once; not `alone`: the run has ranks elsewhere."""
        self.deaths: list[RankDeath] = []
        self.errors: dict[int, ErrorFile] = {}
        self.interrupted_by: int | None = None
        self.standstill = ""
        self.pids = {rank.pid for rank in ranks}
        self._servers = servers
        self._spares = spares
        self._news = news
        self._has_peers = len(ranks) > 1 or not alone
        self._ranks = ranks
        self._directory = directory
        self._inbox = inbox
        self._on_resize = on_resize
        self._on_stop = on_stop
        self._debugged = debugged
        self._waiting = waiting
        self._witness = witness
        self._alive = list(ranks)
        self._failed_at: float | None = None
        self._asked: dict[int, float] = {}
        self._killed_by_user = False

    def watch(self) -> None:
        """Return when every rank process is gone."""
        while self._alive:
            self.pids |= set() if self._servers is None else self._servers.pids
            message = self._inbox.wait(self._tick())
            if message is not None:
                self._handle(message)
            self._collect()
            self._notice_standstill()
            self._look_at_servers()
            self._end_when_due()
        self._read_errors(self._ranks)

    def end_with_others(self) -> None:
        """End the ranks as after a failure of one of them: one elsewhere has failed. From any thread."""
        if self._failed_at is None:
            self._failed_at = time.monotonic()

    def interrupted_again(self) -> bool:
        """Whether a signal that ends the launcher came while it is only passing on the last output."""
        message = self._inbox.wait(0)
        return message is not None and message.si_signo in ENDING

    def failure(self) -> RankFailure | None:
        """The first failure; None when no rank failed, or only by the signal that has ended the run."""
        if self._killed_by_user:
            return None
        if self.standstill:
            return RankFailure(rank=0, time=time.time(), kind="standstill", exit_code=1)
        if self.interrupted_by is not None:
            return failure_beside(ENDING, self.deaths, self.errors)
        return first_failure(self.deaths, self.errors)

    def exit_code(self) -> int:
        if self.interrupted_by is not None:
            return self._interrupted_code(self.interrupted_by)
        failure = self.failure()
        return failure.exit_code if failure is not None else 0

    @property
    def ended_by_signal(self) -> int | None:
        """The signal of a batch system or an administrator that has ended the run; not Ctrl-C."""
        number = self.interrupted_by
        asked = number in (signal.SIGTERM, signal.SIGHUP)
        return number if number is not None and asked and self.exit_code() == 128 + number else None

    def _interrupted_code(self, number: int) -> int:
        """The first rank's own code; one that the interruption ended has the shell's code for that."""
        first = min((rank.rank for rank in self._ranks), default=0)
        main = next((death for death in self.deaths if death.rank == first), None)
        error = self.errors.get(first)
        unhandled = error is not None and (error.kind == "peer" or error.type == "KeyboardInterrupt")
        if self._killed_by_user or main is None or unhandled:
            return 128 + number
        return shell_code(main.code)

    def _tick(self) -> float:
        """How long to wait for a signal: the end of a rank is one, the other evidence lies in files."""
        if self._failed_at is not None:
            return 0.02
        if threading.current_thread() is not threading.main_thread():
            return 0.05
        return 0.1 if self._has_peers else 1.0

    def _handle(self, message: signal.struct_siginfo) -> None:
        number = message.si_signo
        if number == signal.SIGCHLD:
            self._reap_orphan(message.si_pid)
        elif number == signal.SIGWINCH:
            self._on_resize()
            for rank in self._alive:
                rank.send(signal.SIGWINCH)
        elif number == signal.SIGTSTP:
            self._stop_and_continue(message)
        elif number == signal.SIGINT and SignalInbox.from_terminal(message) and self._debugged():
            self.interrupted_by = number  # rank 0 has it from the terminal
        elif number == signal.SIGINT and self.interrupted_by == signal.SIGINT:
            self._killed_by_user = True
            self._kill_all()
        else:
            if number in ENDING and self._failed_at is None:
                self.interrupted_by = number
            self._pass_on(message)

    def _pass_on(self, message: signal.struct_siginfo) -> None:
        """Give every rank the signal once, as the kernel would have done for a plain process."""
        by_key = SignalInbox.from_terminal(message)
        for rank in self._alive:
            if not by_key:
                rank.send(message.si_signo)
            elif rank.own_group:  # the others are in the group to which the key has spoken
                rank.send_to_group(message.si_signo)

    def _stop_and_continue(self, message: signal.struct_siginfo) -> None:
        """Ctrl-Z: the ranks stop with the launcher, and go on when the shell continues it."""
        by_key = SignalInbox.from_terminal(message)
        stopped = [rank for rank in self._alive if rank.own_group or not by_key]
        for rank in stopped:
            rank.send_to_group(signal.SIGSTOP)
        self._on_stop()
        os.kill(os.getpid(), signal.SIGSTOP)
        for rank in stopped:
            rank.send_to_group(signal.SIGCONT)
        self._waiting.forgive()

    def _reap_orphan(self, pid: int) -> None:
        """Bury a descendant that became our child because its parent was gone."""
        if pid and pid not in self.pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def _collect(self) -> None:
        """Take notice of ranks that are gone and of error files."""
        for rank in list(self._alive):
            code = rank.poll()
            if code is None:
                continue
            self._alive.remove(rank)
            ended_by_us = rank.rank in self._asked and code in (-signal.SIGTERM, -signal.SIGKILL)
            if not ended_by_us and not self._killed_by_user:
                death = RankDeath(rank=rank.rank, time=time.time(), code=code)
                if self._failed_at is not None or self.interrupted_by is not None or not self._spares(death):
                    self.deaths.append(death)
                    self._news(death)
        if self._has_peers:
            self._read_errors(self._alive)
        if self._failed_at is None and (self.errors or any(death.code != 0 for death in self.deaths)):
            self._fail()
            if self._alive:  # while their parents live, or their numbers will not be known
                self.pids |= {process.pid for process in leftovers(self._directory.run_id)}

    def _fail(self) -> None:
        """From here on ranks are ended; what is known of them is kept before."""
        self._failed_at = time.monotonic()
        if self.interrupted_by is None:  # or it is no question why
            self._witness.failed({death.rank: death.code for death in self.deaths})

    def _notice_standstill(self) -> None:
        if self._debugged():
            self._waiting.forgive()
            return
        if self._has_peers and self._failed_at is None:
            self.standstill = self._waiting.look()
            if self.standstill:
                self._fail()

    def _look_at_servers(self) -> None:
        if self._servers is None or self._failed_at is not None:
            return
        self.standstill = self._servers.look()
        self.pids |= self._servers.pids
        if self.standstill:
            self._fail()

    def _read_errors(self, ranks: Sequence[RankProcess]) -> None:
        for rank in ranks:
            if rank.rank not in self.errors:
                error = read_error(self._directory.error(rank.rank))
                if error is not None:
                    self.errors[rank.rank] = error
                    self._news(error)

    def _end_when_due(self) -> None:
        if self._failed_at is None:
            return
        now = time.monotonic()
        for rank in self._alive:
            asked_at = self._asked.get(rank.rank)
            if asked_at is None:
                if now - self._failed_at >= self._patience(rank):
                    self._asked[rank.rank] = now
                    rank.send(signal.SIGTERM)
            elif now - asked_at >= TERMINATION_S:
                rank.send(signal.SIGKILL)

    def _patience(self, rank: RankProcess) -> float:
        error = self.errors.get(rank.rank)
        if error is not None:
            return PEER_PATIENCE_S if error.kind == "peer" else OWN_ERROR_PATIENCE_S
        if self.interrupted_by is not None:
            return INTERRUPTED_MAIN_PATIENCE_S if rank.rank == 0 else INTERRUPTED_PATIENCE_S
        return MAIN_PATIENCE_S if rank.rank == 0 else PATIENCE_S

    def _kill_all(self) -> None:
        for rank in self._alive:
            self._asked.setdefault(rank.rank, time.monotonic())
            rank.send_to_group(signal.SIGKILL)
