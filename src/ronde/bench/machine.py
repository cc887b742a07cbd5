"""On what it was measured."""

from __future__ import annotations

import dataclasses
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ronde.cluster.cores import available_cores

__all__ = ["Machine", "cpu_model"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The host of a measurement.

    Attributes:
        memory_gib: of the host, which a container's limit may undercut.
        load: processes that ran or wanted to run in the minute before: above zero, others disturb.
    """

    cpu: str
    cores: int
    memory_gib: float
    load: float
    python: str
    torch: str

    @classmethod
    def here(cls) -> Machine:
        try:
            torch = version("torch")
        except PackageNotFoundError:
            torch = "not installed"
        return cls(
            cpu=cpu_model(Path("/proc/cpuinfo")),
            cores=available_cores(),
            memory_gib=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
            load=round(os.getloadavg()[0], 2),
            python=platform.python_version(),
            torch=torch,
        )


def cpu_model(cpuinfo: Path) -> str:
    """The processor's name as Linux knows it, else its architecture."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()
