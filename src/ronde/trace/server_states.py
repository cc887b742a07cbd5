"""Folders of the parameter servers of an earlier run."""

from __future__ import annotations

import re
from pathlib import Path

from ronde.trace.launch_record import read_launch_record

__all__ = ["server_states"]

_SERVER = re.compile(r"server-(\d+)")


def server_states(directory: Path) -> dict[int, Path]:
    """Return the folders of a run's servers that are visible on this host.

    Args:
        directory: the launcher's run directory; servers on several hosts have their folders in the
            directories of hosts.
    """
    record = read_launch_record(directory / "launch.json")
    of_hosts = sorted(directory.glob("host-*"))
    if record is not None and record.by_agents:
        nodes = [directory.with_name(node.run_id) for node in record.nodes]
        places = [directory, *nodes, *of_hosts]
    else:
        places = [*of_hosts, directory]  # the directory may have been used before, for a run on several hosts
    return {
        int(match[1]): entry
        for place in places
        if place.is_dir()
        for entry in place.iterdir()
        if (match := _SERVER.fullmatch(entry.name)) is not None and entry.is_dir()
    }
