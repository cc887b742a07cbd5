"""Find the launcher process of another system that has started this process."""

from __future__ import annotations

from pathlib import Path

__all__ = ["launching_process"]

_LAUNCHERS = {
    "slurmstepd", "mpirun", "mpiexec", "mpiexec.hydra", "prterun", "prted", "orterun", "orted",
    "hydra_pmi_proxy", "hydra_bstrap_proxy", "pmi_proxy",
}  # fmt: skip
_GENERATIONS = 5


def launching_process(parent: int) -> int:
    """Find the launcher's process on this host among the ancestors of this one.

    Args:
        parent: process id of this process's parent, returned if no launcher is found.
    """
    number = parent
    for _ in range(_GENERATIONS):
        try:
            stat = Path(f"/proc/{number}/stat").read_text()
        except OSError:
            break
        name = stat.partition("(")[2].rpartition(")")[0]
        if name in _LAUNCHERS:
            return number
        number = int(stat.rpartition(")")[2].split()[1])
    return parent
