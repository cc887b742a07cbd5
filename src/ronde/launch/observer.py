"""The process on each host that explains failures of ranks of another launcher."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
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


Serve = Callable[[LaunchJob, socket.socket, float], contextlib.AbstractContextManager[None]]
"""Answers with the metrics of a job at a socket, from files that are newer than a time."""


def observe(explain: Explain, serve: Serve) -> None:
    """Watch the ranks until they are gone, and explain a failure.

    Args:
        explain: function that interprets evidence of a stall or a failure.
        serve: function that serves metrics, if the user has asked for them.
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
    with contextlib.ExitStack() as opened:
        inbox = opened.enter_context(SignalInbox())
        if told["scraped"] is not None:
            opened.enter_context(serve(job, socket.socket(fileno=told["scraped"]), told["since"]))
        node = ObservedNode(share, job.run_directory, run.timeout, told["main"], told["since"])
        Controller(job, [node], inbox, UsersTerminal(job), None, explain, None).run()
