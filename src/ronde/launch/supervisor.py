"""Supervises the ranks of a node, and ends peers of a failed rank.

After the first failure ranks are ended by a timetable (seconds since it was noticed), because ranks that wait
for a dead one would wait long:

    0.1 a rank that says itself that it lost its peers is asked to end (SIGTERM) 0.2 any other rank is, but
    0.8 rank 0, which may be about to meet the same error and to print it 10 a rank with an error of its own:
    it is finishing (uploads, exit handlers) +0.5 any rank that was asked and still runs is killed

After Ctrl-C or SIGTERM the script decides, as under plain python. Only when some rank is gone by it
do the others follow: rank 0, which may be saving, within 10 s.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence

from ronde.launch.failure import RankDeath, RankExits, read_error, signal_name
from ronde.launch.failure_policy import Decision, FailurePolicy
from ronde.launch.node_events import NodeEvents
from ronde.launch.node_spec import NodeSpec
from ronde.launch.outlet import Outlet
from ronde.launch.process_cleanup import leftovers
from ronde.launch.rank_process import RankProcess
from ronde.launch.stall_detector import StallDetector, StallReading
from ronde.launch.worker_group import WorkerGroup
from ronde.trace.evidence import Evidence
from ronde.trace.evidence_collector import EvidenceCollector
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
    """Supervisor of a node's ranks, with a record of their ends.

    Args:
        outlet: the user's side of the ranks' streams.
        ends: record of ends, which the listener of events fills.
        events: listener to what happens.
        gathering: collects evidence of the ranks when one has failed.
        stall: detects ranks that wait for one that does not come.

    Attributes:
        frozen: evidence of the ranks from the moment of the first failure, here or elsewhere.
    """

    def __init__(
        self,
        spec: NodeSpec,
        directory: RunDirectory,
        workers: WorkerGroup,
        outlet: Outlet,
        *,
        ends: RankExits,
        events: NodeEvents,
        gathering: EvidenceCollector,
        stall: StallDetector,
    ) -> None:
        self.frozen: Evidence | None = None
        self.pids = set(workers.pids.values())
        self._directory, self._outlet = directory, outlet
        self._policy = FailurePolicy.of(spec.run)
        self._ends, self._events = ends, events
        self._gathering, self._stall = gathering, stall
        self._ranks, self._servers = workers.ranks, workers.servers
        self._has_lost_server = False
        self._has_peers = spec.world_size > 1
        self._alive = list(workers.ranks)
        self._failed_at: float | None = None
        self._is_to_end = False
        self._asked: dict[int, float] = {}
        self._gone: list[tuple[RankProcess, int]] = []

    @property
    def is_watching(self) -> bool:
        """Return whether some rank is alive, or its end was not handled yet."""
        return bool(self._alive or self._gone)

    def poll(self) -> None:
        """Look for ended ranks, for the next step."""
        for rank in list(self._alive):
            code = rank.poll()
            if code is not None:
                self._alive.remove(rank)
                self._gone.append((rank, code))

    def step(self) -> None:
        """Handle ends that `poll` found, check servers, and end due ranks."""
        self.pids |= set() if self._servers is None else self._servers.pids
        self._collect()
        self._notice_standstill()
        self._look_at_servers()
        self._end_when_due()
        if not self._alive:
            self._read_errors(self._ranks)

    def end(self) -> None:
        """End the ranks as after a failure. Thread-safe."""
        self._is_to_end = True

    def tick(self) -> float:
        """Return the seconds to wait for a signal before the next step."""
        if self._failed_at is not None:
            return 0.02
        if threading.current_thread() is not threading.main_thread():
            return 0.05
        return 0.1 if self._has_peers else 1.0

    def _collect(self) -> None:
        """Record ranks that are gone, and error files."""
        gone, self._gone = self._gone, []
        for rank, code in gone:
            ended_by_us = rank.rank in self._asked and code in (-signal.SIGTERM, -signal.SIGKILL)
            if not ended_by_us and not self._ends.killed_by_user:
                self._take_death(RankDeath(rank=rank.rank, time=time.time(), code=code))
        if self._has_peers:
            self._read_errors(self._alive)
        if self._failed_at is None and (self._is_to_end or self._ends.has_failed):
            self._fail()
            if self._alive:  # while their parents live; later their pids are unknown
                self.pids |= {process.pid for process in leftovers(self._directory.run_id)}

    def _take_death(self, death: RankDeath) -> None:
        is_alone = self._failed_at is None and self._ends.interrupted_by is None
        if not is_alone or self._policy.on_death(death) is not Decision.GO_ON:
            self._events.died(death)
            return
        self._events.noticed(
            f"rank {death.rank} was killed by {signal_name(-death.code)}; the others go on without it; log: "
            f"{self._directory.log(death.rank)} [R422]"
        )

    def _fail(self) -> None:
        """Store the evidence, after which ranks are ended."""
        self._failed_at = time.monotonic()
        # The cause of an interruption is known, and a removed directory cannot hold evidence.
        if self._ends.interrupted_by is None and self._directory.path.exists():
            self.frozen = self._gathering.gather("failure", codes=self._ends.codes)
            self._events.froze(self.frozen)

    def _notice_standstill(self) -> None:
        if self._outlet.is_held:
            self._stall.reset_timer()
            return
        if self._has_peers and self._failed_at is None:
            look = self._stall.look()
            if look is not StallReading.GOES_ON:
                self._events.stalled(self._gathering.gather("stall"), is_over=look is StallReading.IS_OVER)

    def _look_at_servers(self) -> None:
        if self._servers is None or self._failed_at is not None or self._has_lost_server:
            return
        said = self._servers.look(self._events.noticed)
        self.pids |= self._servers.pids
        if said:
            self._has_lost_server = True
            self._events.aborted("server", said)

    def _read_errors(self, ranks: Sequence[RankProcess]) -> None:
        for rank in ranks:
            if rank.rank not in self._ends.errors:
                error = read_error(self._directory.error(rank.rank))
                if error is not None:
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
