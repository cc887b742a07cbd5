"""Runs the ranks and servers of one node to their end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import final

from ronde.launch.failure import RankExits
from ronde.launch.node import Node, NodeOfRun
from ronde.launch.node_events import NodeEnd, NodeEvents
from ronde.launch.node_spec import NodeSpec
from ronde.launch.outlet import Outlet
from ronde.launch.process_cleanup import (
    end_leftovers,
    has_children,
    remove_shared_memory,
    remove_temporary_of_the_dead,
)
from ronde.launch.rank_process import RankProcess
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.stall_detector import StallDetector
from ronde.launch.supervisor import Supervisor
from ronde.launch.worker_group import WorkerGroup
from ronde.trace.evidence import Evidence
from ronde.trace.evidence_collector import EvidenceCollector, read_standings
from ronde.trace.launch_record import LaunchedNode
from ronde.trace.run_directory import RunDirectory

__all__ = ["NodeRunner"]


@final
class NodeRunner(Node):
    """A node in this process: supervises its ranks and collects evidence.

    Args:
        given_up: function that returns whether the ranks' output is no longer read.
    """

    def __init__(
        self,
        spec: NodeSpec,
        directory: RunDirectory,
        workers: WorkerGroup,
        outlet: Outlet,
        given_up: Callable[[], bool],
    ) -> None:
        self.share = NodeOfRun(name="", first_rank=spec.first_rank, ranks=spec.ranks)
        self._spec, self._directory, self._workers = spec, directory, workers
        self._outlet, self._given_up = outlet, given_up
        self._gathering = EvidenceCollector(directory, lambda: workers.pids)
        self._stall = StallDetector(spec.ranks, directory, spec.run.timeout)
        self._stopped: list[RankProcess] = []
        self._has_ended = self._is_released = False
        remove_temporary_of_the_dead()

    def begin(self, ends: RankExits, events: NodeEvents) -> None:
        self._ends, self._events = ends, events
        self._supervisor = Supervisor(
            self._spec,
            self._directory,
            self._workers,
            self._outlet,
            ends=ends,
            events=events,
            gathering=self._gathering,
            stall=self._stall,
        )

    @property
    def record(self) -> LaunchedNode:
        return LaunchedNode(name=os.uname().nodename, run_id=self._directory.run_id, pids=self._workers.pids)

    def tick(self) -> float:
        return self._supervisor.tick()

    def poll(self) -> None:
        self._supervisor.poll()

    def step(self) -> None:
        if self._supervisor.is_watching:
            self._supervisor.step()
        if self._supervisor.is_watching or self.is_over:
            return
        if not self._has_ended:
            self._has_ended = True
            if self._ends.exit_code() == 0:
                self._events.ended()
        if self._workers.servers is None or self._is_released or self._ends.exit_code() != 0:
            self.is_over = True
            self._events.concluded(self._conclude())

    def look(self, reason: str) -> None:
        self._events.looked(self._gathering.gather(reason, codes=self._ends.codes))

    def afterwards(self) -> Evidence:
        """Gather evidence of ranks that have ended without a failure."""
        return self._gathering.afterwards(self._ends.codes)

    def end(self) -> None:
        """End the ranks, as `Node.end`. Thread-safe."""
        self._supervisor.end()
        self.release()

    def release(self) -> None:
        """Let servers end, as `Node.release`. Thread-safe."""
        self._is_released = True
        SignalInbox.wake()

    def signal(self, number: int, *, by_key: bool) -> None:
        is_size = number == signal.SIGWINCH
        for output in self._workers.outputs if is_size else ():
            output.resize()
        for rank in self._workers.ranks:
            if is_size or not by_key:
                rank.send(number)
            elif rank.own_group:  # the others are in the terminal's foreground group
                rank.send_to_group(number)

    def kill(self) -> None:
        for rank in self._workers.ranks:
            rank.send_to_group(signal.SIGKILL)

    def stop(self, *, by_key: bool) -> None:
        self._stopped = [rank for rank in self._workers.ranks if rank.own_group or not by_key]
        for rank in self._stopped:
            rank.send_to_group(signal.SIGSTOP)

    def resume(self) -> None:
        for rank in self._stopped:
            rank.send_to_group(signal.SIGCONT)
        self._stopped = []
        self._stall.reset_timer()

    def reap(self, pid: int) -> None:
        """Reap an orphan that became a child of this process."""
        if pid and pid not in self._supervisor.pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def close(self) -> None:
        """End the servers, if the run was not watched to its end."""
        if self._workers.servers is not None:
            self._workers.servers.end()

    def _conclude(self) -> NodeEnd:
        """End leftover processes of ranks."""
        self.close()
        left = end_leftovers(self._directory.run_id) if has_children() else []
        for output in self._workers.outputs:
            output.drain(until=self._given_up)
        remove_shared_memory(self._supervisor.pids | {process.pid for process in left})
        if self._ends.exit_code() == 0 and self._directory.is_default:
            self._directory.remove_server_states()
        frozen = self._supervisor.frozen
        return NodeEnd(
            evidence=None if frozen is None else self._gathering.completed(frozen, self._ends.codes),
            standings=read_standings(self._directory, self._spec.ranks, first=self._spec.first_rank),
            left=[f"{process.name} (process {process.pid})" for process in left],
        )
