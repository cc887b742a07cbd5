"""Start the ranks of one run on this host and see them through to the end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ronde.cluster.cores import available_cores
from ronde.errors import UsageError
from ronde.launch.announce import say
from ronde.launch.failure_report import report
from ronde.launch.gathering import Gathering, read_standings
from ronde.launch.go_on_without import goes_on_without
from ronde.launch.job import Job, Outcome
from ronde.launch.launched import write_launched
from ronde.launch.linux_process import load_prctl, subreaping
from ronde.launch.output_pump import RankOutput, fill_standard_descriptors
from ronde.launch.progress_line import ProgressLine
from ronde.launch.rank_config import RankConfig
from ronde.launch.rank_environment import rank_environment, threads_per_rank
from ronde.launch.rank_process import RankProcess
from ronde.launch.screen import Screen
from ronde.launch.server_config import ServerConfig, local_endpoint, rule_of_servers
from ronde.launch.servers import Servers
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.standstill import Standstill
from ronde.launch.supervisor import Supervisor
from ronde.launch.sweep import end_leftovers, has_children, remove_shared_memory, remove_temporary_of_the_dead
from ronde.launch.temporary import temporary_folder
from ronde.launch.terminal import in_foreground
from ronde.launch.witness import Explain, Witness
from ronde.plan import Plan
from ronde.trace.events import write_event
from ronde.trace.pulse import Pulse
from ronde.trace.summary import read_summary, summary_lines
from ronde.trace.vitals import first_not_finite, look_at, vitals_path

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
        servers, endpoints = _servers(job, lambda words: _say(job, outputs, words))
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
        remove_temporary_of_the_dead()
        pids = {rank.rank: rank.pid for rank in ranks}
        write_launched(job, pids)
        witness = Witness(job.run_directory, Gathering(job.run_directory, pids, job.ranks), explain)
        supervisor = Supervisor(
            ranks,
            job.run_directory,
            inbox,
            on_resize=lambda: [output.resize() for output in outputs],
            on_stop=lambda: screen and screen.wipe(),
            debugged=lambda: pulse is not None and pulse.debugged,
            waiting=Standstill(
                job.ranks, job.run_directory, job.timeout, witness, lambda words: _say(job, outputs, words)
            ),
            witness=witness,
            servers=servers,
            spares=lambda death: goes_on_without(
                job.plan, death, job.run_directory, lambda words: _say(job, outputs, words)
            ),
        )
        try:
            with _progress(screen, pulse):
                supervisor.watch()
        finally:
            if servers is not None:
                servers.end()
        return _finish(job, supervisor, witness, outputs)


def _open_output(job: Job, rank: int, screen: Screen | None) -> RankOutput:
    shown = job.shown and (rank == 0 or job.labelled)
    return RankOutput.open(
        job.run_directory.log(rank),
        shown=shown,
        like_user=job.shown and not job.labelled,
        screen=screen if shown and not job.labelled else None,
        label=f"[{rank}]" if job.labelled else "",
    )


def _check(job: Job) -> None:
    if job.ranks < 1:
        raise UsageError(f"ranks must be at least 1, not {job.ranks}")
    if job.devices and job.ranks > len(job.devices):
        raise UsageError(
            f"{job.ranks} ranks need {job.ranks} CUDA devices, one each, but this host offers "
            f"{len(job.devices)} ({', '.join(job.devices)}); use --ranks {len(job.devices)}, or run on the "
            'CPU with CUDA_VISIBLE_DEVICES=""'
        )


def _servers(job: Job, say_so: Callable[[str], object]) -> tuple[Servers | None, Endpoints]:
    """The parameter servers that are to be started here, and where the ranks find theirs."""
    plan = Plan.parse(job.plan)
    if job.servers or not plan.state.server_count:
        return None, Endpoints(job.servers, job.server_token)
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
    return Servers(configs, directory, job.environment, say_so), endpoints


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


def _finish(job: Job, supervisor: Supervisor, witness: Witness, outputs: Sequence[RankOutput]) -> Outcome:
    """All ranks are gone: sweep up, let their last output through, and only then tell what happened."""
    failure = supervisor.failure()
    left = end_leftovers(job.run_directory.run_id) if has_children() else []
    for output in outputs:
        output.drain(until=supervisor.interrupted_again)
    remove_shared_memory(supervisor.pids | {process.pid for process in left})
    words = ""
    lines: list[str] = []
    if failure is not None:
        codes = {death.rank: death.code for death in supervisor.deaths}
        explanation = witness.conclude(codes, failure, supervisor.standstill)
        words = report(
            failure,
            supervisor.deaths,
            supervisor.errors,
            job.run_directory,
            job.ranks,
            main_shown=job.shown,
            standings=read_standings(job.run_directory, job.ranks),
            standstill=supervisor.standstill,
            explained=() if explanation is None or explanation.told else explanation.lines(),
        )
    elif supervisor.exit_code() == 0 and not job.quiet:
        lines = _summary(job)
        if left and supervisor.interrupted_by is None:
            names = ", ".join(f"{process.name} (process {process.pid})" for process in left)
            lines.append(f"ended what the script had left running: {names}")
    elif supervisor.ended_by_signal is not None and not job.quiet:
        lines = [_ended_by(supervisor.ended_by_signal, job)]
    new_line = outputs[0].stderr_in_mid_line
    for text in [*lines, *([words] if words else [])]:
        if job.shown:
            say(text, new_line=new_line)
            new_line = False
    told = failure.summary if failure is not None else f"exit code {supervisor.exit_code()}"
    write_event(job.run_directory.path, "end", told, exit_code=supervisor.exit_code())
    if supervisor.exit_code() == 0 and job.run_directory.is_default:
        job.run_directory.remove_server_states()
    return Outcome(exit_code=supervisor.exit_code(), failure=failure, report=words)


def _say(job: Job, outputs: Sequence[RankOutput], words: str) -> None:
    write_event(job.run_directory.path, "notice", words)
    if job.shown:
        say(words, new_line=outputs[0].stderr_in_mid_line)


def _summary(job: Job) -> list[str]:
    """What the ranks wrote down about the run; nothing for a script that did without ronde."""
    found = (read_summary(job.run_directory.summary(rank)) for rank in range(job.ranks))
    lines = summary_lines([summary for summary in found if summary is not None])
    return [*lines, *_not_finite(job)]


def _not_finite(job: Job) -> list[str]:
    """That gradients were no numbers at the end, and since when: an exit code of 0 does not tell."""
    seen = {rank: look_at(vitals_path(job.run_directory.path, rank)) for rank in range(job.ranks)}
    first = first_not_finite({rank: 0 if each is None else each.not_finite for rank, each in seen.items()})
    if first is None:
        return []
    rank, step, everywhere = first
    where = "on all ranks" if everywhere else f"first on rank {rank}"
    return [
        f"gradients are not finite (NaN or infinite) since step {step}, {where}; "
        f"ronde doctor {job.run_directory.path} tells more"
    ]


def _ended_by(number: int, job: Job) -> str:
    """What a batch system's signal has cost, where no rank has said so."""
    name = signal.Signals(number).name
    if job.checkpoint:
        return f"the run was ended by {name}"
    return f"the run was ended by {name}; with --checkpoint DIR it would save first"


@contextlib.contextmanager
def _progress(screen: Screen | None, pulse: Pulse | None) -> Iterator[None]:
    """Inside, a terminal shows how far the run is."""
    line = ProgressLine(screen, pulse) if screen is not None and pulse is not None else None
    if line is not None:
        line.start()
    try:
        yield
    finally:
        if line is not None:
            line.stop()


def _free_port() -> int:
    """A TCP port that is free now, for scripts that meet by themselves."""
    import socket  # here, because it costs a run of one rank 5 ms of its start

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
