"""See a run of one node through to its end, in the process that controls it."""

from __future__ import annotations

import os

from ronde.launch.failure import Ends, ErrorFile, RankDeath
from ronde.launch.job import Job
from ronde.launch.node_events import NodeEvents
from ronde.launch.node_runner import NodeRunner
from ronde.launch.node_spec import NodeSpec
from ronde.launch.outlet import Outlet
from ronde.launch.run_end import Explain, NodeOfRun, RunEnd
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.started import Started
from ronde.trace.evidence import Evidence
from ronde.trace.launch_record import LaunchedNode, write_launch_record

__all__ = ["supervise"]


def supervise(
    job: Job,
    node: NodeSpec,
    started: Started,
    outlet: Outlet,
    inbox: SignalInbox,
    explain: Explain | None,
) -> RunEnd:
    """Wait for all ranks, and end the peers of one that has failed; how it was.

    Args:
        explain: interprets the evidence of a stall or a failure.
    """
    here = LaunchedNode(name=os.uname().nodename, run_id=job.run_directory.run_id, pids=started.pids)
    write_launch_record(job.run_directory.launch, job.launch_record([here]))
    ends = Ends()
    of_run = NodeOfRun(name="", first_rank=0, ranks=job.ranks)
    end = RunEnd(job, ends, [of_run], explain, lambda: started.outputs[0].stderr_in_mid_line)
    runner = NodeRunner(node, job.run_directory, started, ends, _Here(end), outlet, inbox)
    end.ended(0, *runner.watch())
    return end


class _Here(NodeEvents):
    """The only node of a run, in the process that controls it and keeps account of ends for both."""

    def __init__(self, end: RunEnd) -> None:
        self._end = end

    def died(self, death: RankDeath) -> None:
        """Nobody else has to know."""

    def erred(self, error: ErrorFile) -> None:
        """Nobody else has to know."""

    def froze(self, evidence: Evidence) -> None:
        self._end.froze(0, evidence)

    def stalled(self, evidence: Evidence, *, is_over: bool) -> None:
        self._end.stalled({0: evidence}, is_over=is_over)

    def lost_server(self, said: str) -> None:
        self._end.abort("server", said)

    def noticed(self, words: str) -> None:
        self._end.notice(words)

    def ended(self, *, has_servers: bool) -> None:
        """Nobody is waited for."""
