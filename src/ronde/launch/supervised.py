"""Supervise the started ranks of one run on this host; report the outcome."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ronde.launch.announce import say
from ronde.launch.failure_report import report
from ronde.launch.gathering import Gathering, read_standings
from ronde.launch.go_on_without import goes_on_without
from ronde.launch.job import Job, Outcome
from ronde.launch.launched import write_launched
from ronde.launch.output_pump import RankOutput
from ronde.launch.progress_line import ProgressLine
from ronde.launch.rank_process import RankProcess
from ronde.launch.screen import Screen
from ronde.launch.servers import Servers
from ronde.launch.signal_inbox import SignalInbox
from ronde.launch.standstill import Standstill
from ronde.launch.supervisor import Supervisor
from ronde.launch.sweep import end_leftovers, has_children, remove_shared_memory, remove_temporary_of_the_dead
from ronde.launch.witness import Explain, Witness
from ronde.trace.events import write_event
from ronde.trace.pulse import Pulse
from ronde.trace.summary import read_summary, summary_lines
from ronde.trace.vitals import first_not_finite, look_at, vitals_path

__all__ = ["Started", "say_beside", "supervise"]


class Started(NamedTuple):
    """Processes of a run, and the channels to them.

    Attributes:
        ranks: the rank processes, by rank.
        outputs: their output, by rank.
        inbox: signals that this process receives.
        screen: the user's terminal; None where stderr is none, or nothing is shown.
        pulse: rank 0's progress; None where the run directory takes no file.
        servers: parameter servers of this host; None without.
    """

    ranks: Sequence[RankProcess]
    outputs: Sequence[RankOutput]
    inbox: SignalInbox
    screen: Screen | None
    pulse: Pulse | None
    servers: Servers | None


def supervise(job: Job, started: Started, explain: Explain | None) -> Outcome:
    """Wait for all ranks, end peers of a failed one, and report.

    Args:
        explain: interprets the evidence of a stall or a failure.
    """
    ranks, outputs, inbox, screen, pulse, servers = started
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
            job.ranks, job.run_directory, job.timeout, witness, lambda words: say_beside(job, outputs, words)
        ),
        witness=witness,
        servers=servers,
        spares=lambda death: goes_on_without(
            job.plan,
            death,
            job.run_directory,
            lambda words: say_beside(job, outputs, words),
            saves=bool(job.checkpoint),
        ),
    )
    try:
        with _progress(screen, pulse):
            supervisor.watch()
    finally:
        if servers is not None:
            servers.end()
    return _finish(job, supervisor, witness, outputs)


def say_beside(job: Job, outputs: Sequence[RankOutput], words: str) -> None:
    """Record a notice as an event, and print it beside the script's output."""
    write_event(job.run_directory.path, "notice", words)
    if job.shown:
        say(words, new_line=outputs[0].stderr_in_mid_line)


def _finish(job: Job, supervisor: Supervisor, witness: Witness, outputs: Sequence[RankOutput]) -> Outcome:
    """Clean up after all ranks, drain their output, then report the outcome."""
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


def _summary(job: Job) -> list[str]:
    """Read the ranks' summaries; empty for a script without ronde."""
    found = (read_summary(job.run_directory.summary(rank)) for rank in range(job.ranks))
    lines = summary_lines([summary for summary in found if summary is not None])
    return [*lines, *_not_finite(job)]


def _not_finite(job: Job) -> list[str]:
    """Warn of gradients that were NaN or infinite at the end, and since when."""
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
    """Report the loss by a batch system's signal, unless a rank has."""
    name = signal.Signals(number).name
    if job.checkpoint:
        return f"the run was ended by {name}"
    return f"the run was ended by {name}; with --checkpoint DIR it would save first"


@contextlib.contextmanager
def _progress(screen: Screen | None, pulse: Pulse | None) -> Iterator[None]:
    """Show progress on a terminal, as a context."""
    line = ProgressLine(screen, pulse) if screen is not None and pulse is not None else None
    if line is not None:
        line.start()
    try:
        yield
    finally:
        if line is not None:
            line.stop()
