"""Start the ranks of one run on this host and see them through to the end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Iterator

from ronde.cluster.cores import available_cores
from ronde.errors import UsageError
from ronde.launch.announce import say
from ronde.launch.failure_report import report
from ronde.launch.job import Job, Outcome
from ronde.launch.linux_process import become_subreaper, is_subreaper, load_prctl
from ronde.launch.output_pump import PassThrough, fill_standard_descriptors
from ronde.launch.rank_config import RankConfig
from ronde.launch.rank_environment import rank_environment, threads_per_rank
from ronde.launch.rank_process import RankProcess
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.supervisor import Supervisor
from ronde.launch.sweep import end_leftovers, has_children, remove_shared_memory
from ronde.launch.terminal import in_foreground

__all__ = ["launch"]


def launch(job: Job) -> Outcome:
    """Run a job to its end; the report of a failure has been printed when this returns.

    Ranks die with the process that calls this. Meant for the main thread of a process that starts
    no other children meanwhile: it becomes the parent of the ranks' orphans.

    Raises:
        UsageError: more ranks than devices, or fewer than one.
        LaunchError: a rank could not be started; those that were have been ended.
    """
    _check(job)
    fill_standard_descriptors()
    library = load_prctl()
    with SignalInbox() as inbox, _subreaper(library):
        output = PassThrough.open(job.run_directory.log(0)) if job.shown else None
        ranks: list[RankProcess] = []
        try:
            shares_group = in_foreground()
            for config in _configs(job):
                ranks.append(_start(job, config, output, inbox, library, shares_group=shares_group))
        except BaseException:
            for rank in ranks:
                rank.send(signal.SIGKILL)
            raise
        if output is not None:
            output.start()
        supervisor = Supervisor(ranks, job.run_directory, inbox, output.resize if output else _nothing)
        supervisor.watch()
        return _finish(job, supervisor, output)


def _check(job: Job) -> None:
    if job.ranks < 1:
        raise UsageError(f"ranks must be at least 1, not {job.ranks}")
    if job.devices and job.ranks > len(job.devices):
        raise UsageError(
            f"{job.ranks} ranks need {job.ranks} CUDA devices, one each, but this host offers "
            f"{len(job.devices)} ({', '.join(job.devices)}); use --ranks {len(job.devices)}, or run on the CPU "
            'with CUDA_VISIBLE_DEVICES=""'
        )


def _configs(job: Job) -> list[RankConfig]:
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
            extensions=job.extensions,
        )
        for rank in range(job.ranks)
    ]


def _start(
    job: Job,
    config: RankConfig,
    output: PassThrough | None,
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
    with _streams(job, config.rank, output) as (stdout, stderr):
        return RankProcess.start(
            config.rank,
            job.worker,
            environment,
            stdin=None if main else subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            own_group=not (main and shares_group),
            mask=inbox.previous_mask,
            library=library,
        )


@contextlib.contextmanager
def _streams(job: Job, rank: int, output: PassThrough | None) -> Iterator[tuple[int, int]]:
    """Where a rank's stdout and stderr lead: the main rank's to the user, any other's to its log."""
    if rank == 0 and output is not None:
        yield output.stdout, output.stderr
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    log = os.open(job.run_directory.log(rank), flags, 0o666)
    try:
        yield log, log
    finally:
        os.close(log)


def _finish(job: Job, supervisor: Supervisor, output: PassThrough | None) -> Outcome:
    """All ranks are gone: sweep up, let their last output through, and only then tell what happened."""
    failure = supervisor.failure()
    left = end_leftovers(job.run_directory.run_id) if has_children() else []
    if output is not None:
        output.drain(until=supervisor.interrupted_again)
    remove_shared_memory(supervisor.pids | {process.pid for process in left})
    words = ""
    if failure is not None:
        words = report(
            failure,
            supervisor.deaths,
            supervisor.errors,
            job.run_directory,
            job.ranks,
            main_shown=output is not None,
        )
    elif left and supervisor.interrupted_by is None:
        names = ", ".join(f"{process.name} (process {process.pid})" for process in left)
        words = f"ended what the script had left running: {names}"
    if words and output is not None:
        say(words, new_line=output.stderr_in_mid_line)
    return Outcome(exit_code=supervisor.exit_code(), failure=failure, report=words)


@contextlib.contextmanager
def _subreaper(library: ctypes.CDLL) -> Iterator[None]:
    before = is_subreaper(library)
    become_subreaper(library, True)
    try:
        yield
    finally:
        become_subreaper(library, before)


def _free_port() -> int:
    """A TCP port that is free now, for scripts that meet by themselves."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _nothing() -> None:
    """There is no terminal whose size could be passed on."""
