"""Options of `ronde run` for timelines."""

from __future__ import annotations

import os
from pathlib import Path

from ronde.cluster.environment import ClusterEnvironment
from ronde.errors import UsageError
from ronde.launch.announce import say
from ronde.launch.job import LaunchJob

__all__ = ["TRACED_STEPS", "traced_steps", "write_run_timeline"]

TRACED_STEPS = "1:100"


def traced_steps(
    file: Path | None, steps: str | None, *, native: bool, place: ClusterEnvironment | None
) -> str:
    """Return the range of steps to trace as text; empty without --trace.

    Raises:
        UsageError: the range, the file or the kind of run does not allow a timeline.
    """
    if file is None:
        if steps is not None:
            raise UsageError(f"--trace-steps {steps} chooses the steps; add --trace FILE for the file [R607]")
        return ""
    if native:
        raise UsageError("--trace needs a script that ronde distributes; leave out --native [R607]")
    if place is not None:
        raise UsageError(
            "--trace needs ranks that ronde has started, not torchrun; start them by --ranks N [R607]"
        )
    from ronde.trace.recorder import StepRange

    try:
        StepRange.parse(steps or TRACED_STEPS)
    except ValueError:
        raise UsageError(
            f"--trace-steps {steps} is not a range of steps A:B, counted from 1; try "
            f"--trace-steps {TRACED_STEPS} [R607]"
        ) from None
    if not os.access(file.absolute().parent, os.W_OK | os.X_OK) or file.is_dir():
        raise UsageError(f"--trace {file} cannot be written there; name a file in an existing folder [R607]")
    return steps or TRACED_STEPS


def write_run_timeline(job: LaunchJob, file: Path) -> None:
    from ronde.report.timeline import write_timeline

    try:
        made = write_timeline(job.run_directory.path, file)
    except OSError as error:
        say(
            f"the timeline was not written to {file}: {error.strerror}; its parts are in the run "
            "directory [R609]"
        )
        return
    if not job.run.quiet:
        say(
            f"a timeline of {made.spans} spans is in {file}; open it in ui.perfetto.dev or "
            "chrome://tracing [R608]"
        )
        if made.hosts > 1:
            say(f"clocks of its {made.hosts} hosts agree to {made.error * 1e3:.2f} ms [R606]")
