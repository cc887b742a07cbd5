"""Start the nodes of a run on hosts, each through its agent."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ronde.launch.agents import agent_links
from ronde.launch.failure import ENDING
from ronde.launch.file_receiver import FileReceiver
from ronde.launch.hosts import Hosts
from ronde.launch.job import LaunchJob
from ronde.launch.node import Node
from ronde.launch.node_spec import NodeSpec
from ronde.launch.remote_node import RemoteNode
from ronde.launch.rendezvous import Rendezvous, RendezvousResult
from ronde.launch.run_spec import RunSpec
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.store_process import start_store
from ronde.launch.users_terminal import UsersTerminal
from ronde.launch.version_transfer import newest_version
from ronde.plan import Plan

if TYPE_CHECKING:
    from ronde.launch.server_config import ServerConfig

__all__ = ["Interrupted", "start_on_hosts"]


class Interrupted(Exception):
    """Raised when a signal comes before any rank was started."""

    def __init__(self, number: int) -> None:
        self.number = number


def start_on_hosts(
    job: LaunchJob, hosts: Hosts, terminal: UsersTerminal, inbox: SignalInbox, opened: contextlib.ExitStack
) -> tuple[Sequence[Node], subprocess.Popen[bytes], Sequence[str]]:
    """Start the store and each host's part, once all hosts are reached.

    Args:
        opened: stack of resources to close after the run.

    Raises:
        UsageError: a variable is not set, or a folder cannot be written.
        LaunchError: a host cannot take part; the message has a line with a fix for each. No rank was started.
        Interrupted: the user has ended the run.
    """
    arriving = FileReceiver(job)
    links = opened.enter_context(agent_links(hosts, terminal.show, arriving.take))
    met = Rendezvous(job, hosts, links, lambda seconds: _wait(inbox, seconds)).meet(inbox)
    with met.listener:
        store = start_store(met.listener, job.run_directory.store_log, linger=0, command=hosts.store)
        opened.callback(_end, store)
        nodes = [
            RemoteNode(
                link,
                spec,
                job.run_directory,
                arriving,
                terminal.pulse if not spec.host else None,
                [str(trouble)] if (trouble := link.clock.first.trouble(link.name)) else [],
            )
            for link, spec in zip(links, _specs(job, hosts, met), strict=True)
        ]
        return nodes, store, [arriving.notice([links[host].name for host in met.far])] if met.far else []


def _specs(job: LaunchJob, hosts: Hosts, met: RendezvousResult) -> Sequence[NodeSpec]:
    """Make the specification of each host's part of the run."""
    run, servers = _place_servers(job, met)
    first = job.first_rank
    specs: list[NodeSpec] = []
    for host, (_, ranks) in enumerate(hosts.shares):
        specs.append(
            NodeSpec(
                run=run,
                run_id=job.node_run_id(host),
                run_dir=job.chosen_directory,
                host=host,
                hosts=len(hosts.shares),
                first_rank=first,
                ranks=ranks,
                world_size=job.ranks,
                store=f"tcp://{met.address}:{met.port}",
                master_address=met.address,
                master_port=met.port,
                address=met.own[host],
                cuda=met.cuda,
                one_stream=os.path.samestat(os.fstat(1), os.fstat(2)),
                servers=tuple(servers[host]),
                is_far=host in met.far,
            )
        )
        first += ranks
    return specs


def _place_servers(job: LaunchJob, met: RendezvousResult) -> tuple[RunSpec, Sequence[Sequence[ServerConfig]]]:
    """Return the run with its servers, and the servers of each host."""
    run, hosts = job.run, len(met.own)
    if run.publish:
        run = dataclasses.replace(run, published=newest_version(job.run_directory.path))
    count = 0 if run.servers else Plan.parse(run.plan).state.server_count
    if not count:
        return run, [() for _ in range(hosts)]
    from ronde.launch.server_config import with_servers

    endpoints = [
        f"tcp://{met.own[index % hosts]}:{met.ports[index % hosts][index // hosts]}" for index in range(count)
    ]
    run, configs = with_servers(run, endpoints, job.ranks)
    return run, [configs[host::hosts] for host in range(hosts)]


def _wait(inbox: SignalInbox, seconds: float) -> None:
    """Wait for news; raise if a signal comes before ranks can get it."""
    message = inbox.wait(seconds)
    while message is not None:
        if message.si_signo in ENDING:
            raise Interrupted(message.si_signo)
        if message.si_signo == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
        message = inbox.wait(0)


def _end(store: subprocess.Popen[bytes]) -> None:
    store.kill()
    store.wait()
