"""What `ronde run` does, with the fake worker: DRIVER RUN_DIR RANKS SCRIPT ARGS..."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ronde.launch.job import LaunchJob
from ronde.launch.launcher import launch
from ronde.launch.run_spec import RunSpec
from ronde.trace.run_directory import RunDirectory


def main() -> None:
    run_dir, ranks, script, *arguments = sys.argv[1:]
    job = LaunchJob(
        run=RunSpec(
            script=script,
            arguments=tuple(arguments),
            seed=7,
            timeout=float(os.environ.get("DRIVER_TIMEOUT", "1800")),
            worker=(sys.executable, str(Path(__file__).with_name("fake_worker.py"))),
        ),
        ranks=int(ranks),
        run_directory=RunDirectory.create(Path(run_dir), os.environ),
        environment=os.environ,
    )
    sys.exit(launch(job).exit_code)


if __name__ == "__main__":
    main()
