"""Launch record of a run: hosts, processes and clocks, for outside observers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ronde.trace.whole_file import replace_file

__all__ = [
    "LaunchRecord",
    "LaunchedNode",
    "read_launch_record",
    "write_launch_record",
]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LaunchedNode:
    """A node of a run.

    Attributes:
        name: its host's, as the user gave it.
        run_id: mark that identifies processes of its ranks.
        pids: process of each of its ranks, by rank.
        wall, monotonic: seconds to add to its clocks' times for times of the launcher's host.
        compared: time of the comparison of clocks, by its monotonic clock.
        drift: further seconds to add for each second after that; measured at the end of a run.
        error: possible error of these offsets, in seconds.
    """

    name: str
    run_id: str
    pids: Mapping[int, int]
    wall: float = 0.0
    monotonic: float = 0.0
    compared: float = 0.0
    drift: float = 0.0
    error: float = 0.0

    def by_launchers_clock(self, time: int) -> int:
        """Convert a time of its monotonic clock, in ns, to the launcher's host."""
        return time + round(self.monotonic * 1e9 + self.drift * (time - self.compared * 1e9))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LaunchRecord:
    """`launch.json` of a run directory.

    Attributes:
        host: name of the host of the launcher.
        launcher: its process.
        nodes: nodes where this launcher has started ranks; empty under another launcher, where each rank
            shows its process.
        by_agents: whether nodes are reached by agents, so that only the launcher can look at their ranks.
        watched: whether a launcher of ronde's watches the run to its end, and reports it.
    """

    run_id: str
    host: str
    launcher: int
    script: str
    plan: str
    nodes: Sequence[LaunchedNode]
    by_agents: bool = False
    watched: bool = True

    @property
    def pids(self) -> dict[int, int]:
        """The process of each rank on its host."""
        return {rank: pid for node in self.nodes for rank, pid in node.pids.items()}


def write_launch_record(path: Path, record: LaunchRecord) -> None:
    """Write the record. A run directory without space is ignored."""
    replace_file(path, json.dumps(dataclasses.asdict(record)) + "\n")


def read_launch_record(path: Path) -> LaunchRecord | None:
    """Read the record; None if it was never written."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        nodes = [
            LaunchedNode(**{**node, "pids": {int(rank): pid for rank, pid in node["pids"].items()}})
            for node in fields["nodes"]
        ]
        return LaunchRecord(**{**fields, "nodes": nodes})
    except (OSError, ValueError, KeyError, TypeError):
        return None
