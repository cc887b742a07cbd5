"""What `ronde run -H` does, with the fake worker and "hosts" all here: RUN_DIR HOSTS SCRIPT ARGS..."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ronde.cluster.host_list import parse_hosts, ranks_of_hosts
from ronde.doctor.explain import explain
from ronde.errors import RondeError
from ronde.launch.hosts import Hosts
from ronde.launch.job import LaunchJob
from ronde.launch.launcher import launch
from ronde.launch.remote_command import RemoteExec
from ronde.launch.run_spec import RunSpec
from ronde.trace.run_directory import RunDirectory

# As ssh does, it hands its second argument to a shell; a login shell may greet on stdout first.
STUB = ("sh", "-c", 'echo "Welcome to $0"; eval "$1"')


def main() -> None:
    run_dir, names, script, *arguments = sys.argv[1:]
    shares = ranks_of_hosts(parse_hosts(names), None)
    job = LaunchJob(
        run=RunSpec(
            script=script,
            arguments=tuple(arguments),
            seed=7,
            timeout=float(os.environ.get("DRIVER_TIMEOUT", "1800")),
            worker=(sys.executable, str(Path(__file__).with_name("fake_worker.py"))),
        ),
        ranks=sum(count for _, count in shares),
        run_directory=RunDirectory.create(Path(run_dir), os.environ),
        environment=os.environ,
    )
    # Nobody joins the store here.
    hosts = Hosts(
        shares=shares,
        way=RemoteExec(command=STUB),
        always=True,
        variables=("COLOUR", "SHAPE=round"),
        store=("sh", "-c", "exec sleep 60"),
    )
    try:
        sys.exit(launch(job, hosts, explain).exit_code)
    except RondeError as error:
        print(f"ronde: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
