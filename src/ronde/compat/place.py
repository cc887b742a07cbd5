"""Where a process stands among the ranks of its job, as its launcher says in the environment."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from ronde.errors import LaunchError

__all__ = ["PLACE_KEY", "UNIT_KEY", "JobPlace", "read_place"]

PLACE_KEY = "RONDE_COMPAT_PLACE"
# What the driver of an elastic job tells the ranks of a unit, by their launcher.
UNIT_KEY = "RONDE_COMPAT_UNIT"

# By what a launcher of ranks that is not ours is known: rank and number of ranks.
_OTHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpirun", "PMI_RANK", "PMI_SIZE"),
    ("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE"),
    ("bpslaunch", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE"),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class JobPlace:
    """One process.

    Attributes:
        rank, size: among all.
        local_rank, local_size: on this host.
        cross_rank, cross_size: this host's number, and how many there are.
        store: where ranks meet, `file://PATH` or `tcp://HOST:PORT`; "" for one rank alone.
        address: by which other hosts reach this one; "" on one host.
        timeout: seconds for which a collective waits.
        unit, index: which of the processes that an elastic job has started; -1: this job's hosts stay.
        generation: counts the times that its ranks have come together; 0 before the first.
        peers: what its ranks are, the same while they are the same; "" where they stay.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    store: str = ""
    address: str = ""
    timeout: float = 1800.0
    unit: int = -1
    index: int = 0
    generation: int = 0
    peers: str = ""

    @property
    def is_elastic(self) -> bool:
        """Whether hosts come and go."""
        return self.unit >= 0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def variables(self) -> dict[str, str]:
        """What Horovod and BytePS set for a script."""
        told = {
            "RANK": self.rank, "SIZE": self.size,
            "LOCAL_RANK": self.local_rank, "LOCAL_SIZE": self.local_size,
            "CROSS_RANK": self.cross_rank, "CROSS_SIZE": self.cross_size,
        }  # fmt: skip
        local = {"BYTEPS_LOCAL_RANK": self.local_rank, "BYTEPS_LOCAL_SIZE": self.local_size}
        horovod = {f"HOROVOD_{name}": value for name, value in told.items()}
        return {name: str(value) for name, value in {**horovod, **local}.items()}


def read_place(environment: Mapping[str, str]) -> JobPlace:
    """The place of this process; without a launcher it is alone.

    Raises:
        LaunchError: another launcher has started several ranks, which could not meet.
    """
    told = environment.get(PLACE_KEY)
    if told:
        return JobPlace(**json.loads(told))
    for launcher, rank, size in _OTHERS:
        if rank in environment and environment.get(size, "1") not in ("", "1"):
            raise LaunchError(
                f"{launcher} has started {environment[size]} ranks; start this script by `ronde horovodrun "
                f"-np {environment[size]} python SCRIPT`, by which its ranks find one another"
            )
    return JobPlace()
