"""A launcher process for one unit: starts its ranks and waits for them."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
from pathlib import Path

from ronde.errors import RondeError
from ronde.launch.hosts import Hosts
from ronde.launch.job import LaunchJob
from ronde.launch.launcher import launch
from ronde.launch.linux_process import bind_to_parent, load_prctl
from ronde.launch.run_end import Explain
from ronde.messages import as_error
from ronde.trace.run_directory import RunDirectory

__all__ = ["main", "start_launcher"]

# Keep the working directory off sys.path, so that its files cannot shadow modules.
_COMMAND = (
    sys.executable,
    "-c",
    "import sys; sys.path[:1] = []; from ronde.compat.elastic.host_launcher import main; main()",
)


def start_launcher(
    job: LaunchJob, hosts: Hosts, directory: Path | None, explain: Explain | None
) -> subprocess.Popen[bytes]:
    """Start the launcher of one host. Its exit code is the job's.

    It has its own process group, as the terminal's keys are for the driver, and dies with the driver.

    Args:
        directory: run directory of the unit, to be made; None: one in the user's state directory.
        explain: a module-level function, pickled by name.
    """
    process = subprocess.Popen([*_COMMAND, str(os.getpid())], stdin=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    with process.stdin as stream:
        pickle.dump((job, hosts, directory, explain), stream)
    return process


def main() -> None:
    """Run the job that is pickled on stdin."""
    bind_to_parent(load_prctl(), int(sys.argv[1]))
    job, hosts, directory, explain = pickle.load(sys.stdin.buffer)
    try:
        job = dataclasses.replace(job, run_directory=RunDirectory.create(directory, job.environment))
        code = launch(job, hosts, explain).exit_code
    except RondeError as error:
        print(f"ronde: {as_error(str(error))}", file=sys.stderr)
        code = 1
    sys.exit(code)
