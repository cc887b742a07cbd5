"""The process on each host that explains failures of ranks of another launcher."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from ronde.launch.controller import Controller
from ronde.launch.external_launch import OBSERVER_KEY
from ronde.launch.job import LaunchJob
from ronde.launch.node import NodeOfRun
from ronde.launch.observed_node import ObservedNode
from ronde.launch.run_end import Explain
from ronde.launch.run_spec import RunSpec
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.users_terminal import UsersTerminal
from ronde.trace.run_directory import RunDirectory

__all__ = ["observe"]


def observe(explain: Explain) -> None:
    """Watch the ranks until they are gone, and explain a failure.

    Args:
        explain: function that interprets evidence of a stall or a failure.
    """
    told = json.loads(os.environ.pop(OBSERVER_KEY))
    run = RunSpec.from_fields(told["run"])
    job = LaunchJob(
        run=run,
        ranks=told["ranks"],
        run_directory=RunDirectory(path=Path(told["directory"]), run_id=told["run_id"]),
        environment=os.environ,
    )
    name = socket.gethostname() if told["here"] < told["ranks"] else ""
    share = NodeOfRun(name=name, first_rank=told["first_rank"], ranks=told["here"])
    with SignalInbox() as inbox:
        node = ObservedNode(share, job.run_directory, run.timeout, told["main"], told["since"])
        Controller(job, [node], inbox, UsersTerminal(job), None, explain, None).run()
