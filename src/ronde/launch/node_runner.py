"""The ranks and servers of one node of a run, from their start to the last word about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ronde.launch.failure import Ends
from ronde.launch.gathering import Gathering, read_standings
from ronde.launch.go_on_without import goes_on_without
from ronde.launch.node_events import NodeEvents
from ronde.launch.node_spec import NodeSpec
from ronde.launch.outlet import Outlet
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.standstill import Standstill
from ronde.launch.started import Started
from ronde.launch.supervisor import Supervisor
from ronde.launch.sweep import end_leftovers, has_children, remove_shared_memory, remove_temporary_of_the_dead
from ronde.trace.evidence import Evidence
from ronde.trace.lockstep_board import Standing
from ronde.trace.run_directory import RunDirectory

__all__ = ["NodeEnd", "NodeRunner"]


class NodeEnd(NamedTuple):
    """What there is to say when all ranks of a node are gone.

    Attributes:
        evidence: what was frozen at a failure, with what has become known since; None without a failure.
        standings: places where the ranks stood last.
        left: processes that the script has left, and that were ended.
    """

    evidence: Evidence | None
    standings: Sequence[Standing]
    left: Sequence[str]


class NodeRunner:
    """Supervises and looks at the ranks of one node, and tells what happens."""

    def __init__(
        self,
        node: NodeSpec,
        directory: RunDirectory,
        started: Started,
        ends: Ends,
        events: NodeEvents,
        outlet: Outlet,
        inbox: SignalInbox,
    ) -> None:
        self._node, self._directory, self._started = node, directory, started
        self._ends, self._events = ends, events
        self._gathering = Gathering(directory, started.pids, node.ranks)
        self._supervisor = Supervisor(
            started,
            directory,
            inbox,
            ends=ends,
            outlet=outlet,
            waiting=Standstill(node.ranks, directory, node.run.timeout),
            gathering=self._gathering,
            events=events,
            spares=lambda death: goes_on_without(node.run, death, directory, events),
            alone=node.hosts == 1,
        )

    def watch(self, *, given_up: Callable[[], bool] | None = None) -> NodeEnd:
        """See the ranks through to their end.

        Args:
            given_up: whether nobody reads any more what ranks have printed; None: ask the signals.
        """
        remove_temporary_of_the_dead()
        supervisor, servers = self._supervisor, self._started.servers
        try:
            supervisor.watch()
            if self._ends.exit_code() == 0:
                self._events.ended(has_servers=servers is not None)
        finally:
            if servers is not None:
                servers.end()
        left = end_leftovers(self._directory.run_id) if has_children() else []
        for output in self._started.outputs:
            output.drain(until=given_up or supervisor.interrupted_again)
        remove_shared_memory(supervisor.pids | {process.pid for process in left})
        if self._ends.exit_code() == 0 and self._directory.is_default:
            self._directory.remove_server_states()
        frozen = supervisor.frozen
        return NodeEnd(
            evidence=None if frozen is None else self._gathering.completed(frozen, self._ends.codes),
            standings=read_standings(self._directory, self._node.ranks, first=self._node.first_rank),
            left=[f"{process.name} (process {process.pid})" for process in left],
        )

    def look(self, reason: str) -> Evidence:
        """What is known of the ranks now. From any thread."""
        return self._gathering.gather(reason, codes=self._ends.codes)

    def afterwards(self) -> Evidence:
        """What is known of ranks that have ended without a failure."""
        return self._gathering.afterwards(self._ends.codes)

    def end(self) -> None:
        """End the ranks: one has failed, here or elsewhere. From any thread."""
        self._supervisor.end()
        SignalInbox.wake()
