"""Records of a run's nodes in its run directory, for other tools."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import final

from ronde.launch.job import LaunchJob
from ronde.launch.node import Node
from ronde.trace.launch_record import write_launch_record
from ronde.trace.waiting import write_waiting

__all__ = ["LaunchRecordWriter"]

# Seconds between two records of the collectives that ranks of other hosts wait for.
_EVERY_S = 1.0


@final
class LaunchRecordWriter:
    """`launch.json` of the run directory, and `waiting.json` of a run by agents."""

    def __init__(self, job: LaunchJob, nodes: Sequence[Node], *, by_agents: bool) -> None:
        self._job, self._nodes, self._by_agents = job, nodes, by_agents
        self._is_written = False
        self._next = 0.0

    def write(self) -> None:
        """Write the nodes once they are known, and every second the waiting ranks."""
        if not self._is_written:
            self._is_written = self.write_nodes()
        if self._by_agents and time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_S
            waiting = {rank: what for node in self._nodes for rank, what in node.waiting.items()}
            write_waiting(self._job.run_directory.path, waiting)

    def write_nodes(self) -> bool:
        """Write places of ranks and clock offsets; return whether all ranks have started."""
        found = [node.record for node in self._nodes]
        nodes = [each for each in found if each is not None]
        if len(nodes) < len(found):
            return False
        record = self._job.launch_record(nodes, by_agents=self._by_agents)
        write_launch_record(self._job.run_directory.launch, record)
        return True
