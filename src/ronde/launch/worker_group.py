"""The worker group of a node: processes of ranks and servers, with their output."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ronde.cluster.cores import available_cores
from ronde.launch.linux_process import load_prctl
from ronde.launch.node_spec import NodeSpec
from ronde.launch.outlet import Outlet
from ronde.launch.output_pump import RankOutput
from ronde.launch.rank_environment import rank_environment, threads_per_rank
from ronde.launch.rank_process import RankProcess
from ronde.launch.shared_devices import is_shared
from ronde.launch.signal_inbox import SignalInbox
from ronde.trace.run_directory import RunDirectory

if TYPE_CHECKING:
    from ronde.launch.servers import Servers

__all__ = ["WorkerGroup", "start_worker_group"]


class WorkerGroup(NamedTuple):
    """Processes of a node, and their channels.

    Attributes:
        ranks: the rank processes, by rank.
        outputs: their output, by rank.
        servers: parameter servers of this node; None without.
    """

    ranks: Sequence[RankProcess]
    outputs: Sequence[RankOutput]
    servers: Servers | None

    @property
    def pids(self) -> dict[int, int]:
        """The pid of each rank."""
        return {rank.rank: rank.pid for rank in self.ranks}


def start_worker_group(
    node: NodeSpec,
    directory: RunDirectory,
    environment: Mapping[str, str],
    devices: Sequence[str],
    outlet: Outlet,
    inbox: SignalInbox,
    temporary: str,
) -> WorkerGroup:
    """Start a node's servers and ranks. Call it before any thread starts.

    Args:
        directory: the node's run directory.
        environment: variables from which a rank's are made.
        devices: a CUDA device for each rank; none: ranks on the CPU.
        temporary: folder for temporary files of ranks.

    Raises:
        LaunchError: a process could not be started; started ones have been ended.
    """
    library = load_prctl()
    threads = threads_per_rank(environment, asked=node.run.threads, cores=available_cores(), ranks=node.ranks)
    ranks: list[RankProcess] = []
    configs = node.rank_configs(directory, temporary, has_terminal=outlet.has_terminal)
    outputs = [outlet.open(config.place.rank) for config in configs]
    servers = _servers(node, directory, environment)
    try:
        if servers is not None:
            servers.start()
        for config, output in zip(configs, outputs, strict=True):
            main = config.place.rank == 0
            ranks.append(
                RankProcess.start(
                    config.place.rank,
                    node.run.worker,
                    rank_environment(
                        environment,
                        config,
                        run_id=directory.run_id,
                        threads=threads,
                        device=devices[config.place.local_rank] if devices else None,
                        shared=is_shared(devices[: node.ranks]),
                    ),
                    streams=(outlet.stdin if main else subprocess.DEVNULL, output.stdout, output.stderr),
                    own_group=not (main and outlet.shares_group),
                    mask=inbox.previous_mask,
                    library=library,
                )
            )
    except BaseException:
        for rank in ranks:
            rank.send(signal.SIGKILL)
        if servers is not None:
            servers.end()
        raise
    for output in outputs:
        output.start()
    return WorkerGroup(ranks, outputs, servers)


def _servers(node: NodeSpec, directory: RunDirectory, environment: Mapping[str, str]) -> Servers | None:
    if not node.servers:
        return None
    from ronde.launch.servers import Servers

    return Servers(node.servers, directory, environment)
