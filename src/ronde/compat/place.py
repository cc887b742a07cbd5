"""The place of a process in its job, from its launcher's environment variables."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from ronde.errors import LaunchError

__all__ = ["PLACE_KEY", "UNIT_KEY", "JobPlace", "read_place"]

PLACE_KEY = "RONDE_COMPAT_PLACE"
# Variable by which the driver of an elastic job configures the ranks of a unit.
UNIT_KEY = "RONDE_COMPAT_UNIT"

# Other launchers: name, and their variables for rank and number of ranks.
_OTHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpirun", "PMI_RANK", "PMI_SIZE"),
    ("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE"),
    ("bpslaunch", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE"),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class JobPlace:
    """The place of one process in its job.

    Attributes:
        rank, size: global rank, and number of ranks.
        local_rank, local_size: rank on this host, and number of ranks on it.
        cross_rank, cross_size: number of this host, and number of hosts.
        store: address of the rendezvous store, `file://PATH` or `tcp://HOST:PORT`; "" for a single rank.
        address: address of this host for other hosts; "" on a single host.
        timeout: seconds for which a collective waits.
        unit, index: unit of an elastic job and index of this rank in it; unit -1: the job is not elastic.
        generation: number of this rank's generation; 0 before the first.
        peers: fingerprint of the generation's ranks; "" in a job that is not elastic.
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
        """Return whether hosts may come and go."""
        return self.unit >= 0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def variables(self) -> dict[str, str]:
        """Return the environment variables that Horovod and BytePS set."""
        told = {
            "RANK": self.rank, "SIZE": self.size,
            "LOCAL_RANK": self.local_rank, "LOCAL_SIZE": self.local_size,
            "CROSS_RANK": self.cross_rank, "CROSS_SIZE": self.cross_size,
        }  # fmt: skip
        local = {"BYTEPS_LOCAL_RANK": self.local_rank, "BYTEPS_LOCAL_SIZE": self.local_size}
        horovod = {f"HOROVOD_{name}": value for name, value in told.items()}
        return {name: str(value) for name, value in {**horovod, **local}.items()}


def read_place(environment: Mapping[str, str]) -> JobPlace:
    """Return the place of this process; without a launcher it is a single rank.

    Raises:
        LaunchError: another launcher started several ranks, which could not find each other.
    """
    told = environment.get(PLACE_KEY)
    if told:
        return JobPlace(**json.loads(told))
    for launcher, rank, size in _OTHERS:
        if rank in environment and environment.get(size, "1") not in ("", "1"):
            raise LaunchError(
                f"{launcher} has started {environment[size]} ranks; start this script by `ronde horovodrun "
                f"-np {environment[size]} python SCRIPT`, by which its ranks find one another [R709]"
            )
    return JobPlace()
