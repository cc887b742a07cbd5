"""Description of the measured host."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ronde.cluster.cores import available_cores
from ronde.cluster.devices import cuda_names

__all__ = ["Machine", "cpu_model"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The host of a measurement.

    Attributes:
        memory_gib: the memory of the host, which a container's limit may undercut.
        load: the mean of running and waiting processes in the minute before; others disturb above zero.
        devices: the usable CUDA devices, such as `8 x NVIDIA H200`; empty on a CPU host.
    """

    cpu: str
    cores: int
    memory_gib: float
    load: float
    python: str
    torch: str
    devices: str = ""

    @classmethod
    def here(cls) -> Machine:
        """Describe this host."""
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
            devices=", ".join(f"{n} x {name}" for name, n in Counter(cuda_names(os.environ)).items()),
        )

    @property
    def processors(self) -> str:
        """Name the devices and the processor."""
        return f"{self.devices}, {self.cpu}" if self.devices else self.cpu

    @property
    def line(self) -> str:
        """Describe the host in a line."""
        return (
            f"{self.processors}, {self.cores} cores, {self.memory_gib:.0f} GiB, load {self.load:.1f} before, "
            f"python {self.python}, torch {self.torch}"
        )


def cpu_model(cpuinfo: Path) -> str:
    """Return the processor's name as Linux knows it, else its architecture."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()
