"""Run a job to its end, on this host or on others."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from ronde.launch.job import LaunchJob, Outcome
from ronde.launch.local_node import start_here
from ronde.launch.output_pump import fill_standard_descriptors
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.users_terminal import UsersTerminal

if TYPE_CHECKING:
    from ronde.launch.hosts import Hosts
    from ronde.launch.run_end import Explain

__all__ = ["launch"]


def launch(
    job: LaunchJob,
    hosts: Hosts | None = None,
    explain: Explain | None = None,
    is_to_end: threading.Event | None = None,
) -> Outcome:
    """Run a job to its end, and print the report of a failure.

    Ranks die with the process that calls this. Call it in the main thread, and start no other children
    meanwhile.

    Args:
        hosts: the hosts of ranks; None: this process starts them.
        explain: function that interprets evidence of a stall or a failure.
        is_to_end: event by which the ranks are asked to end, as by SIGTERM.

    Raises:
        UsageError: ranks are more than devices or fewer than one, or an option does not work on several
            hosts.
        LaunchError: a rank could not be started, or a host cannot take part; started ranks have been ended.
    """
    fill_standard_descriptors()
    terminal = UsersTerminal(job)
    with SignalInbox() as inbox, contextlib.ExitStack() as opened:
        if hosts is None:
            nodes, store, notices = [start_here(job, terminal, inbox, opened)], None, ()
        else:
            from ronde.launch.remote_nodes import Interrupted, start_on_hosts

            try:
                nodes, store, notices = start_on_hosts(job, hosts, terminal, inbox, opened)
            except Interrupted as interrupted:
                return Outcome(exit_code=128 + interrupted.number)
        # Imported while the ranks import torch, as in `start_here`.
        from ronde.launch.controller import Controller

        controller = Controller(job, nodes, inbox, terminal, store, explain, is_to_end)
        for words in notices:
            controller.run_end.notice(words)
        return controller.run()
