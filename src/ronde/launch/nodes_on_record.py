"""Nodes of a run on several hosts, written down for other tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from ronde.launch.agent_link import AgentLink
from ronde.launch.clock import launched_node
from ronde.launch.job import Job
from ronde.trace.launch_record import write_launch_record
from ronde.trace.waiting import write_waiting

__all__ = ["NodesOnRecord"]


@final
class NodesOnRecord:
    """`launch.json` and `waiting.json` of the launcher's run directory."""

    def __init__(self, job: Job, links: Sequence[AgentLink]) -> None:
        self._job, self._links = job, links
        self._pids: dict[int, Mapping[int, int]] = {}
        self._waiting: dict[int, Mapping[int, str]] = {}

    def started(self, link: AgentLink, pids: Mapping[str, int]) -> None:
        """Note the processes of a host's ranks; the last host completes the record."""
        self._pids[link.index] = {int(rank): pid for rank, pid in pids.items()}
        self.write_nodes()

    def write_nodes(self) -> None:
        """Write places of ranks and differences of clocks, once all have been started."""
        if len(self._pids) < len(self._links):
            return
        nodes = [
            launched_node(link.name, self._job.node_run_id(link.index), self._pids[link.index], link.clock)
            for link in self._links
        ]
        record = self._job.launch_record(nodes, by_agents=True)
        write_launch_record(self._job.run_directory.launch, record)

    def waits(self, link: AgentLink, waiting: Mapping[int, str]) -> None:
        """Keep the collectives for which ranks of a host wait."""
        self._waiting[link.index] = waiting

    def write_waiting(self) -> None:
        """Write the collectives for which ranks wait."""
        waiting = {rank: what for node in self._waiting.values() for rank, what in node.items()}
        write_waiting(self._job.run_directory.path, waiting)
