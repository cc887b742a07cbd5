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

from ronde.launch.failure import ENDING, Ends, RankDeath, read_error
from ronde.launch.gathering import Gathering
from ronde.launch.node_events import NodeEvents
from ronde.launch.outlet import Outlet
from ronde.launch.rank_process import RankProcess
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.standstill import Look, Standstill
from ronde.launch.started import Started
from ronde.launch.sweep import leftovers
from ronde.trace.evidence import Evidence
from ronde.trace.run_directory import RunDirectory

__all__ = ["Supervisor"]

PEER_PATIENCE_S = 0.1
PATIENCE_S = 0.2
MAIN_PATIENCE_S = 0.8
OWN_ERROR_PATIENCE_S = 10.0
INTERRUPTED_PATIENCE_S = 1.0
INTERRUPTED_MAIN_PATIENCE_S = 10.0
TERMINATION_S = 0.5


class Supervisor:
    """The ranks of a run on one node, and what is known about their ends.

    Args:
        ends: account of ends, which is kept here.
        outlet: the side of the user.
        gathering: looks at the ranks when one has failed.
        events: hears of what happens.
        waiting: looks whether ranks wait for one that does not come.
        spares: whether the run goes on without a rank that has died.
        alone: whether the run has no ranks elsewhere.

    Attributes:
        frozen: what was known of the ranks when one had failed, here or elsewhere.
    """

    def __init__(  # noqa: PLR0913 - what it watches, and whom it tells
        self,
        started: Started,
        directory: RunDirectory,
        inbox: SignalInbox,
        *,
        ends: Ends,
        outlet: Outlet,
        waiting: Standstill,
        gathering: Gathering,
        events: NodeEvents,
        spares: Callable[[RankDeath], bool],
        alone: bool,
    ) -> None:
        self.frozen: Evidence | None = None
        self.pids = set(started.pids.values())
        self._ends = ends
        self._servers = started.servers
        self._outputs = started.outputs
        self._outlet = outlet
        self._has_lost_server = False
        self._spares = spares
        self._events = events
        self._has_peers = len(started.ranks) > 1 or not alone
        self._ranks = started.ranks
        self._directory = directory
        self._inbox = inbox
        self._waiting = waiting
        self._gathering = gathering
        self._alive = list(started.ranks)
        self._failed_at: float | None = None
        self._is_to_end = False
        self._asked: dict[int, float] = {}

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

    def end(self) -> None:
        """End the ranks as after a failure of one of them, whatever the reason is. From any thread."""
        self._is_to_end = True

    def interrupted_again(self) -> bool:
        """Whether a signal that ends the launcher came while it is only passing on the last output."""
        message = self._inbox.wait(0)
        return message is not None and message.si_signo in ENDING

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
            for output in self._outputs:
                output.resize()
            for rank in self._alive:
                rank.send(signal.SIGWINCH)
        elif number == signal.SIGTSTP:
            self._stop_and_continue(message)
        elif number == signal.SIGINT and SignalInbox.from_terminal(message) and self._outlet.is_held:
            self._ends.interrupted_by = number  # rank 0 has it from the terminal
        elif number == signal.SIGINT and self._ends.interrupted_by == signal.SIGINT:
            self._ends.killed_by_user = True
            self._kill_all()
        else:
            if number in ENDING and self._failed_at is None:
                self._ends.interrupted_by = number
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
        self._outlet.wipe()
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
            if not ended_by_us and not self._ends.killed_by_user:
                death = RankDeath(rank=rank.rank, time=time.time(), code=code)
                if (
                    self._failed_at is not None
                    or self._ends.interrupted_by is not None
                    or not self._spares(death)
                ):
                    self._ends.deaths.append(death)
                    self._events.died(death)
        if self._has_peers:
            self._read_errors(self._alive)
        if self._failed_at is None and (self._is_to_end or self._ends.has_failed):
            self._fail()
            if self._alive:  # while their parents live, or their numbers will not be known
                self.pids |= {process.pid for process in leftovers(self._directory.run_id)}

    def _fail(self) -> None:
        """From here on ranks are ended; what is known of them is kept before."""
        self._failed_at = time.monotonic()
        # After an interruption it is no question why; a directory that was removed takes no evidence.
        if self._ends.interrupted_by is None and self._directory.path.exists():
            self.frozen = self._gathering.gather("failure", codes=self._ends.codes)
            self._events.froze(self.frozen)

    def _notice_standstill(self) -> None:
        if self._outlet.is_held:
            self._waiting.forgive()
            return
        if self._has_peers and self._failed_at is None:
            look = self._waiting.look()
            if look is not Look.GOES_ON:
                self._events.stalled(self._gathering.gather("stall"), is_over=look is Look.IS_OVER)

    def _look_at_servers(self) -> None:
        if self._servers is None or self._failed_at is not None or self._has_lost_server:
            return
        said = self._servers.look(self._events.noticed)
        self.pids |= self._servers.pids
        if said:
            self._has_lost_server = True
            self._events.lost_server(said)

    def _read_errors(self, ranks: Sequence[RankProcess]) -> None:
        for rank in ranks:
            if rank.rank not in self._ends.errors:
                error = read_error(self._directory.error(rank.rank))
                if error is not None:
                    self._ends.errors[rank.rank] = error
                    self._events.erred(error)

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
        error = self._ends.errors.get(rank.rank)
        if error is not None:
            return PEER_PATIENCE_S if error.kind == "peer" else OWN_ERROR_PATIENCE_S
        if self._ends.interrupted_by is not None:
            return INTERRUPTED_MAIN_PATIENCE_S if rank.rank == 0 else INTERRUPTED_PATIENCE_S
        return MAIN_PATIENCE_S if rank.rank == 0 else PATIENCE_S

    def _kill_all(self) -> None:
        for rank in self._alive:
            self._asked.setdefault(rank.rank, time.monotonic())
            rank.send_to_group(signal.SIGKILL)
