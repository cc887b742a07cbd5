"""The hosts of a run that another launcher has started: `hosts.json`.

The observer of a host sees only that host's ranks, and names the others by this file.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from ronde.trace.whole_file import replace_file

__all__ = ["RunHost", "read_hosts", "write_hosts"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunHost:
    """A host of a run.

    Attributes:
        ranks: numbers of its ranks.
        address: address by which other hosts reach it; "" where it is not known.
    """

    name: str
    ranks: tuple[int, ...]
    address: str = ""


def write_hosts(directory: Path, hosts: Sequence[RunHost]) -> None:
    """Write the hosts into the run directory. A full disk is ignored."""
    replace_file(_path(directory), json.dumps([dataclasses.asdict(host) for host in hosts]))


def read_hosts(directory: Path) -> tuple[RunHost, ...]:
    """Read the hosts; () without the file."""
    try:
        found = json.loads(_path(directory).read_text(encoding="utf-8"))
        return tuple(RunHost(**{**host, "ranks": tuple(host["ranks"])}) for host in found)
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _path(directory: Path) -> Path:
    return directory / "hosts.json"
