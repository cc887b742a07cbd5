"""Start the only node of a run, in the process that controls the run."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ronde.errors import UsageError
from ronde.launch.failure import ENDING
from ronde.launch.job import LaunchJob
from ronde.launch.linux_process import load_prctl, subreaping
from ronde.launch.node_spec import NodeSpec
from ronde.launch.shared_devices import deal
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.users_terminal import UsersTerminal
from ronde.launch.worker_group import start_worker_group
from ronde.plan import Plan
from ronde.trace.temporary_folder import temporary_folder

if TYPE_CHECKING:
    from ronde.launch.node import Node

__all__ = ["start_here"]


def start_here(
    job: LaunchJob, terminal: UsersTerminal, inbox: SignalInbox, opened: contextlib.ExitStack
) -> Node:
    """Start ranks, and the parameter servers of the plan.

    This process becomes the parent of the ranks' orphans.

    Args:
        opened: stack of resources to close after the run.

    Raises:
        UsageError: more ranks than devices, or fewer than one.
        LaunchError: a rank could not be started; started ones have been ended.
    """
    _check(job)
    opened.enter_context(subreaping(load_prctl()))
    temporary = opened.enter_context(temporary_folder(job.run_directory.run_id))
    spec = _spec(job)
    workers = start_worker_group(
        spec, job.run_directory, job.environment, job.devices, terminal, inbox, temporary
    )
    # Imported while the ranks import torch, which shortens the start of a run.
    from ronde.launch.node_runner import NodeRunner

    def interrupted_again() -> bool:
        """Return whether a signal that ends this process came during the last output."""
        message = inbox.wait(0)
        return message is not None and message.si_signo in ENDING

    node = NodeRunner(spec, job.run_directory, workers, terminal, interrupted_again)
    opened.callback(node.close)
    return node


def _check(job: LaunchJob) -> None:
    if job.ranks < 1:
        raise UsageError(f"ranks must be at least 1, not {job.ranks} [R178]")
    if job.devices and job.ranks > len(job.devices):
        raise UsageError(
            f"{job.ranks} ranks need {job.ranks} CUDA devices, one each, but this host offers "
            f"{len(job.devices)} ({', '.join(job.devices)}); use --ranks {len(job.devices)}, run on the "
            'CPU with CUDA_VISIBLE_DEVICES="", or name a device once for each rank that is to share it '
            f"(CUDA_VISIBLE_DEVICES={','.join(deal(job.devices, job.ranks))}), which is slow [R178]"
        )


def _spec(job: LaunchJob) -> NodeSpec:
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


def _free_port() -> int:
    """Return a free TCP port, for scripts that set up their own group."""
    import socket  # imported here, because it would slow the start of a single rank by 5 ms

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
