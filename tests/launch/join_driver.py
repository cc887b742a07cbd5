"""What `torchrun ... -m ronde run` does in a rank, with the fake worker: RUN_DIR SCRIPT ARGS..."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ronde.cli.observer import COMMAND
from ronde.cluster.environment import ClusterEnvironment
from ronde.launch.external_launch import become_rank, shared_run_id, shared_seed
from ronde.launch.job import LaunchJob
from ronde.launch.run_spec import RunSpec
from ronde.trace.run_directory import RunDirectory


def main() -> None:
    run_dir, script, *arguments = sys.argv[1:]
    place = ClusterEnvironment.detect(os.environ)
    assert place is not None
    run_id = shared_run_id(place, os.getppid())
    job = LaunchJob(
        run=RunSpec(
            script=script,
            arguments=tuple(arguments),
            seed=shared_seed(place),
            worker=(sys.executable, str(Path(__file__).with_name("fake_worker.py"))),
        ),
        ranks=place.world_size,
        run_directory=RunDirectory.join(Path(run_dir), run_id, os.environ),
        environment=os.environ,
    )
    become_rank(job, place, COMMAND)


if __name__ == "__main__":
    main()
