"""Start the ranks of one run on this host and see them through to the end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from ronde.cluster.cores import available_cores
from ronde.errors import UsageError
from ronde.launch.job import Job, Outcome
from ronde.launch.linux_process import load_prctl, subreaping
from ronde.launch.output_pump import RankOutput, fill_standard_descriptors
from ronde.launch.rank_config import RankConfig
from ronde.launch.rank_environment import rank_environment, threads_per_rank
from ronde.launch.rank_process import RankProcess
from ronde.launch.screen import Screen
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.temporary import temporary_folder
from ronde.launch.terminal import in_foreground
from ronde.plan import Plan
from ronde.trace.pulse import Pulse

if TYPE_CHECKING:
    from collections.abc import Callable

    from ronde.launch.repeated_lines import RepeatedLines
    from ronde.launch.servers import Servers
    from ronde.launch.witness import Explain

__all__ = ["launch"]


class Endpoints(NamedTuple):
    """Where parameter servers listen, and the token by which they know the run's messages."""

    addresses: tuple[str, ...]
    token: str


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
    library = load_prctl()
    with SignalInbox() as inbox, subreaping(library), temporary_folder(job.run_directory.run_id) as temporary:
        ranks: list[RankProcess] = []
        screen = Screen.of_user(job.environment) if job.shown and not job.quiet else None
        pulse = Pulse.create(job.run_directory.pulse)
        outputs = [_open_output(job, rank, screen) for rank in range(job.ranks)]
        servers, endpoints = _servers(job, outputs)
        try:
            if servers is not None:
                servers.start()
            shares_group = in_foreground()
            for config, output in zip(_configs(job, temporary, endpoints), outputs, strict=True):
                ranks.append(_start(job, config, output, inbox, library, shares_group=shares_group))
        except BaseException:
            for rank in ranks:
                rank.send(signal.SIGKILL)
            if servers is not None:
                servers.end()
            raise
        for output in outputs:  # all ranks have been started: from here on there may be threads
            output.start()
        # Imported while the ranks import torch: a run begins sooner by what it takes.
        from ronde.launch.supervised import Started, supervise

        return supervise(job, Started(ranks, outputs, inbox, screen, pulse, servers), explain)


def _open_output(job: Job, rank: int, screen: Screen | None) -> RankOutput:
    shown = job.shown and (rank == 0 or job.labelled)
    return RankOutput.open(
        job.run_directory.log(rank),
        shown=shown,
        like_user=job.shown and not job.labelled,
        screen=screen if shown and not job.labelled else None,
        label=f"[{rank}]" if job.labelled else "",
        repeated=_repeated(job) if job.checkpoint and not job.labelled else None,
    )


def _repeated(job: Job) -> Callable[[str], RepeatedLines]:
    """Make the filter of repeated lines for a stream, by its name."""
    from ronde.launch.repeated_lines import RepeatedLines

    return lambda stream: RepeatedLines(job.run_directory.path, stream, resumed=job.resume)


def _check(job: Job) -> None:
    if job.ranks < 1:
        raise UsageError(f"ranks must be at least 1, not {job.ranks}")
    if job.devices and job.ranks > len(job.devices):
        raise UsageError(
            f"{job.ranks} ranks need {job.ranks} CUDA devices, one each, but this host offers "
            f"{len(job.devices)} ({', '.join(job.devices)}); use --ranks {len(job.devices)}, or run on the "
            'CPU with CUDA_VISIBLE_DEVICES=""'
        )


def _servers(job: Job, outputs: list[RankOutput]) -> tuple[Servers | None, Endpoints]:
    """Parameter servers to be started here, and where the ranks find theirs."""
    plan = Plan.parse(job.plan)
    if job.servers or not plan.state.server_count:
        return None, Endpoints(job.servers, job.server_token)
    from ronde.launch.server_config import ServerConfig, local_endpoint, rule_of_servers
    from ronde.launch.servers import Servers
    from ronde.launch.supervised import say_beside

    directory, token = job.run_directory, os.urandom(16).hex()
    configs = [
        ServerConfig(
            index=index,
            servers=plan.state.server_count,
            endpoint=local_endpoint(directory.run_id, index),
            token=token,
            workers=job.ranks,
            update=rule_of_servers(plan),
            staleness=plan.update.staleness or 0,
            directory=str(directory.server_state(index)),
            durability=job.durability,
            sync=job.durability_sync,
            source=job.server_state,
        )
        for index in range(plan.state.server_count)
    ]
    endpoints = Endpoints(tuple(config.endpoint for config in configs), token)
    return Servers(
        configs, directory, job.environment, lambda words: say_beside(job, outputs, words)
    ), endpoints


def _configs(job: Job, temporary: str, endpoints: Endpoints) -> list[RankConfig]:
    port = _free_port()
    return [
        RankConfig(
            rank=rank,
            world_size=job.ranks,
            local_rank=rank,
            local_world_size=job.ranks,
            run_dir=str(job.run_directory.path),
            store=job.run_directory.store,
            script=job.script,
            arguments=job.arguments,
            module=job.module,
            plan=job.plan,
            seed=job.seed,
            native=job.native,
            master_port=port,
            device="cuda" if job.devices else "cpu",
            timeout=job.timeout,
            extensions=job.extensions,
            watched=True,
            quiet=job.quiet,
            publish=job.publish,
            trace_steps=job.trace_steps,
            checkpoint=job.checkpoint,
            checkpoint_every=job.checkpoint_every,
            checkpoint_keep=job.checkpoint_keep,
            resume=job.resume,
            terminal=os.isatty(0),
            temporary=temporary,
            servers=endpoints.addresses,
            server_token=endpoints.token,
        )
        for rank in range(job.ranks)
    ]


def _start(
    job: Job,
    config: RankConfig,
    output: RankOutput,
    inbox: SignalInbox,
    library: ctypes.CDLL,
    *,
    shares_group: bool,
) -> RankProcess:
    main = config.rank == 0
    environment = rank_environment(
        job.environment,
        config,
        run_id=job.run_directory.run_id,
        threads=threads_per_rank(
            job.environment, asked=job.threads, cores=available_cores(), ranks=job.ranks
        ),
        device=job.devices[config.rank] if job.devices else None,
    )
    return RankProcess.start(
        config.rank,
        job.worker,
        environment,
        streams=(None if main else subprocess.DEVNULL, output.stdout, output.stderr),
        own_group=not (main and shares_group),
        mask=inbox.previous_mask,
        library=library,
    )


def _free_port() -> int:
    """A TCP port that is free now, for scripts that meet by themselves."""
    import socket  # here, because it costs a run of one rank 5 ms of its start

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
