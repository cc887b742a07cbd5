"""A job of the launcher, and its outcome."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ronde.launch.run_spec import RunSpec
from ronde.trace.run_directory import RunDirectory

if TYPE_CHECKING:
    from ronde.launch.failure import RankFailure
    from ronde.trace.launch_record import LaunchedNode, LaunchRecord

__all__ = ["LaunchJob", "Outcome"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LaunchJob:
    """A run that a launcher of this host is to start.

    Attributes:
        run: the script, its plan and its options.
        ranks: number of ranks.
        run_directory: place of logs and reports, where ranks of this host meet.
        environment: variables from which a rank's are made; the launcher's own, as a rule.
        devices: one CUDA device per rank as `CUDA_VISIBLE_DEVICES` names it; empty: ranks on the CPU.
        shown: whether rank 0's output is passed on to this process's; otherwise it is logged only.
        attempt: number of times that its ranks have been started before.
        first_rank: number of the first one, where others are started by other launchers.
    """

    run: RunSpec
    ranks: int
    run_directory: RunDirectory
    environment: Mapping[str, str]
    devices: tuple[str, ...] = ()
    shown: bool = True
    attempt: int = 0
    first_rank: int = 0

    def resumed(self, attempt: int) -> LaunchJob:
        """Return the same run, started once more from its newest checkpoint."""
        return dataclasses.replace(self, run=dataclasses.replace(self.run, resume=True), attempt=attempt)

    def node_run_id(self, node: int) -> str:
        """Return the run id on a node, unique because nodes may be one machine."""
        return f"{self.run_directory.run_id}{self.attempt:02x}{node:04x}"

    @property
    def chosen_directory(self) -> str:
        """The run directory that the user chose; "" without a choice."""
        return "" if self.run_directory.is_default else str(self.run_directory.path)

    def launch_record(
        self, nodes: Sequence[LaunchedNode], *, by_agents: bool = False, watched: bool = True
    ) -> LaunchRecord:
        """Make the launch record of the ranks that this process has started."""
        from ronde.trace.launch_record import LaunchRecord  # imported here, because ranks are started before

        return LaunchRecord(
            run_id=self.run_directory.run_id,
            host=os.uname().nodename,
            launcher=os.getpid(),
            script=self.run.script,
            plan=self.run.plan,
            nodes=nodes,
            by_agents=by_agents,
            watched=watched,
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The end of a run.

    Attributes:
        exit_code: the script's own, or that of the rank that failed first; 128 + n after signal n.
        failure: the first failure, None without one or when the user ended the run.
        report: lines for the user, "" when the script has said it all.
    """

    exit_code: int
    failure: RankFailure | None = None
    report: str = ""
