"""A run of one node, in this process: start ranks on this host and see them through to the end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ronde.errors import UsageError
from ronde.launch.job import Job, Outcome
from ronde.launch.linux_process import load_prctl, subreaping
from ronde.launch.node_spec import NodeSpec
from ronde.launch.outlet import Outlet
from ronde.launch.output_pump import RankOutput, fill_standard_descriptors
from ronde.launch.screen import Screen
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.started import start_node
from ronde.launch.temporary import temporary_folder
from ronde.launch.terminal import in_foreground
from ronde.plan import Plan
from ronde.trace.pulse import Pulse

if TYPE_CHECKING:
    from collections.abc import Callable

    from ronde.launch.repeated_lines import RepeatedLines
    from ronde.launch.run_end import Explain

__all__ = ["launch"]


def launch(job: Job, explain: Explain | None = None) -> Outcome:
    """Run a job to its end; the report of a failure has been printed when this returns.

    Ranks die with the process that calls this. Meant for the main thread of a process that starts
    no other children meanwhile: it becomes the parent of the ranks' orphans.

    Args:
        explain: says what evidence of a stall or a failure means.

    Raises:
        UsageError: more ranks than devices, or fewer than one.
        LaunchError: a rank could not be started; those that were have been ended.
    """
    _check(job)
    fill_standard_descriptors()
    with (
        SignalInbox() as inbox,
        subreaping(load_prctl()),
        temporary_folder(job.run_directory.run_id) as temporary,
    ):
        screen = Screen.of_user(job.environment) if job.shown and not job.run.quiet else None
        pulse = Pulse.create(job.run_directory.pulse)
        node, outlet = _node(job), _UsersTerminal(job, screen, pulse)
        started = start_node(node, job.run_directory, job.environment, job.devices, outlet, inbox, temporary)
        # Imported while the ranks import torch: a run begins sooner by what it takes.
        from ronde.launch.progress_line import shown_progress
        from ronde.launch.supervised import supervise

        with shown_progress(screen, pulse):
            end = supervise(job, node, started, outlet, inbox, explain)
        return end.outcome()


def _check(job: Job) -> None:
    if job.ranks < 1:
        raise UsageError(f"ranks must be at least 1, not {job.ranks}")
    if job.devices and job.ranks > len(job.devices):
        raise UsageError(
            f"{job.ranks} ranks need {job.ranks} CUDA devices, one each, but this host offers "
            f"{len(job.devices)} ({', '.join(job.devices)}); use --ranks {len(job.devices)}, or run on the "
            'CPU with CUDA_VISIBLE_DEVICES=""'
        )


def _node(job: Job) -> NodeSpec:
    """The only node of the run, with the parameter servers of its plan."""
    run, directory = job.run, job.run_directory
    count = 0 if run.servers else Plan.parse(run.plan).state.server_count
    servers = ()
    if count:
        from ronde.launch.server_config import local_endpoint, with_servers

        endpoints = [local_endpoint(directory.run_id, index) for index in range(count)]
        run, servers = with_servers(run, endpoints, job.ranks)
    return NodeSpec(
        run=run,
        run_id=directory.run_id,
        ranks=job.ranks,
        world_size=job.ranks,
        store=directory.store,
        master_port=_free_port(),
        cuda=bool(job.devices),
        servers=tuple(servers),
    )


class _UsersTerminal(Outlet):
    """The streams of this process, which may be a terminal."""

    def __init__(self, job: Job, screen: Screen | None, pulse: Pulse | None) -> None:
        self.stdin = None
        self.shares_group = in_foreground()
        self.has_terminal = os.isatty(0)
        self._job, self._screen, self._pulse = job, screen, pulse

    def open(self, rank: int) -> RankOutput:
        job = self._job
        labelled = job.run.labelled
        shown = job.shown and (rank == 0 or labelled)
        return RankOutput.open(
            job.run_directory.log(rank),
            shown=shown,
            like_user=job.shown and not labelled,
            screen=self._screen if shown and not labelled else None,
            label=f"[{rank}]" if labelled else "",
            repeated=_repeated(job) if job.run.checkpoint and not labelled else None,
        )

    @property
    def is_held(self) -> bool:
        return self._pulse is not None and self._pulse.debugged

    def wipe(self) -> None:
        if self._screen is not None:
            self._screen.wipe()


def _repeated(job: Job) -> Callable[[str], RepeatedLines]:
    """Make the filter of repeated lines for a stream, by its name."""
    from ronde.launch.repeated_lines import RepeatedLines

    return lambda stream: RepeatedLines(job.run_directory.path, stream, resumed=job.run.resume)


def _free_port() -> int:
    """A TCP port that is free now, for scripts that meet by themselves."""
    import socket  # here, because it costs a run of one rank 5 ms of its start

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
