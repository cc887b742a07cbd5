"""Finds the CUDA devices of this host without importing torch."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ronde.cluster.torch_install import torch_version_file

__all__ = ["cuda_devices", "cuda_names", "device_of_ranks", "torch_has_cuda"]


def cuda_devices(environment: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """List the usable devices as `CUDA_VISIBLE_DEVICES` names them; empty on CPUs.

    As CUDA does it, a list in `CUDA_VISIBLE_DEVICES` ends at its first negative entry. Without the
    variable the driver's device files are counted: a container has only those lent to it, and
    unlike `nvidia-smi` that takes no time.
    """
    present = sorted(
        int(match[1])
        for path in root.glob("dev/nvidia*")
        if (match := re.fullmatch(r"nvidia(\d+)", path.name))
    )
    if not present:
        return ()
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(str(index) for index in range(len(present)))
    chosen: list[str] = []
    for entry in visible.split(","):
        name = entry.strip()
        if not name or name.startswith("-"):
            break
        chosen.append(name)
    return tuple(chosen)


def cuda_names(environment: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """List the driver's names of the usable devices; empty on CPUs."""
    devices = cuda_devices(environment, root)
    if not devices:
        return ()
    query = ("nvidia-smi", f"--id={','.join(devices)}", "--query-gpu=name", "--format=csv,noheader")
    try:
        told = subprocess.run(query, env=environment, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in told.stdout.splitlines() if line.strip())


def device_of_ranks(environment: Mapping[str, str]) -> str:
    """Return the device type of ranks that are started here: "cuda" or "cpu"."""
    return "cuda" if torch_has_cuda() and cuda_devices(environment) else "cpu"


def torch_has_cuda() -> bool:
    """Tell whether the installed torch was built with CUDA, by its version file."""
    return re.search(r"^cuda\b[^=\n]*=\s*['\"]", torch_version_file(), re.MULTILINE) is not None
