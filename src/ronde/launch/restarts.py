"""A run that goes on after a failure: its ranks are started again, from the newest checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from ronde.launch.job import Job, Outcome
from ronde.launch.local import launch
from ronde.trace.events import write_event

__all__ = ["is_for_another_start", "launch_with_restarts"]


def launch_with_restarts(
    job: Job, restarts: int, say: Callable[[str], object], *, launching: Callable[[Job], Outcome] = launch
) -> Outcome:
    """Run a job to its end, starting its ranks again up to so many times.

    Args:
        restarts: how often; a rank's own mistake on the command line is none of them.
        launching: runs a job once.
    """
    for attempt in range(1, restarts + 1):
        outcome = launching(job)
        if not is_for_another_start(outcome):
            return outcome
        assert outcome.failure is not None
        words = f"restart {attempt} of {restarts}, from the newest checkpoint in {job.run.checkpoint}"
        say(f"{outcome.failure.summary}; {words}")
        write_event(job.run_directory.path, "restart", words)
        job.run_directory.begin_attempt(attempt)
        job = job.resumed(attempt)
    return launching(job)


def is_for_another_start(outcome: Outcome) -> bool:
    """Whether it failed by something that may not happen again."""
    failure = outcome.failure
    return failure is not None and failure.kind != "diverged" and failure.exit_code != _USAGE


_USAGE = 2
