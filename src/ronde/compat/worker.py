"""The entry point of a rank under `ronde horovodrun`: sets the environment, then execs."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

from ronde.compat.place import PLACE_KEY, UNIT_KEY, JobPlace
from ronde.launch.rank_config import RankConfig

__all__ = ["WORKER", "environment_of", "main"]

WORKER = (sys.executable, "-m", "ronde.compat.worker")

_PATH = Path(__file__).parent / "path"


def main() -> None:
    """Replace this process by the user's command."""
    config = RankConfig.take_from(os.environ)
    command = (config.run.script, *config.run.arguments)
    unit = os.environ.pop(UNIT_KEY, "")
    environment = {**os.environ, **environment_of(config, os.environ.get("PYTHONPATH", ""), unit)}
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        print(f"ronde: error: cannot start {command[0]!r}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


def environment_of(config: RankConfig, path: str, unit: str = "") -> dict[str, str]:
    """Return the environment variables for the command.

    Args:
        path: previous value of `PYTHONPATH`.
        unit: number of the elastic job's unit and port of the driver's store, as "NUMBER,PORT"; "" otherwise.
    """
    place = JobPlace(
        rank=config.place.rank,
        size=config.place.world_size,
        local_rank=config.place.local_rank,
        local_size=config.place.local_world_size,
        cross_rank=config.place.host,
        cross_size=config.place.hosts,
        store=config.place.store if config.place.world_size > 1 else "",
        address=config.place.address,
        timeout=config.run.timeout,
    )
    if unit:
        # The driver runs on the launcher's host, so its store has the same address.
        number, port = unit.split(",")
        host = config.place.store.rpartition(":")[0]
        place = dataclasses.replace(
            place, unit=int(number), index=config.place.local_rank, store=f"{host}:{port}"
        )
    paths = os.pathsep.join(filter(None, (str(_PATH), path)))
    return {PLACE_KEY: place.to_json(), "PYTHONPATH": paths, **place.variables()}


if __name__ == "__main__":
    main()
