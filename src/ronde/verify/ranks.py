"""The ranks' side: `python -m ronde.verify.ranks RANKS RUN_DIR JOB` exits with their code.

It is a separate process, because the launcher needs the main thread, the working directory and the output for
itself.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ronde.launch.job import LaunchJob
from ronde.launch.launcher import launch
from ronde.launch.run_spec import RunSpec
from ronde.trace.run_directory import RunDirectory

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    ranks, run_dir, text = arguments
    fields: dict[str, Any] = json.loads(text)
    job = LaunchJob(
        run=RunSpec.from_fields(fields["run"]),
        ranks=int(ranks),
        run_directory=RunDirectory.create(Path(run_dir), os.environ),
        environment=os.environ,
        devices=tuple(fields["devices"]),
    )
    return launch(job).exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
