"""Who says where ranks go."""

from __future__ import annotations

from pathlib import Path

import pytest

from ronde.cluster.host_list import parse_hosts
from ronde.errors import UsageError
from ronde.launch.placement import Placement, resolve_placement

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
OF_TORCH = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
}
ALLOCATION = {
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_NTASKS": "2",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}
POD = {
    "RONDE_PODS": "2",
    "JOB_COMPLETION_INDEX": "1",
    "JOBSET_NAME": "train",
    "REPLICATED_JOB_NAME": "workers",
}


def of(environment: dict[str, str], hosts: str | None = None, hostfile: Path | None = None) -> Placement:
    return resolve_placement(hosts, hostfile, environment, devices=0, parent=1)


@pytest.mark.parametrize(
    ("environment", "origin"),
    [
        ({}, ""),
        (TORCHRUN, "torchrun"),
        (OF_TORCH, "RANK and WORLD_SIZE"),
        ({**MPI, **SLURM}, "mpirun of Open MPI"),
        ({**TORCHRUN, **MPI, **SLURM}, "torchrun"),
        ({**SLURM, **ALLOCATION}, "srun"),
        (ALLOCATION, "Slurm's allocation"),
        ({**ALLOCATION, "RONDE_HOSTS": "a:2"}, "RONDE_HOSTS"),
        (POD, "Kubernetes"),
        ({"PET_NNODES": "2", "PET_NODE_RANK": "0"}, "PET_*"),
        ({**TORCHRUN, "PET_NNODES": "2"}, "torchrun"),
    ],
)
def test_who_has_the_say(environment: dict[str, str], origin: str) -> None:
    assert of(environment).origin == origin


def test_flags_come_first(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("c slots=3\n")
    environment = {**ALLOCATION, "RONDE_HOSTS": "a:2"}
    assert of(environment, hosts="b:4") == Placement(origin="-H", hosts=parse_hosts("b:4"))
    assert of(environment, hostfile=file).hosts == parse_hosts("c:3")
    assert of({"RONDE_HOSTFILE": str(file)}).origin == "RONDE_HOSTFILE"


def test_both_cannot_be_meant(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="-H and --hostfile both name the hosts"):
        of({}, hosts="a", hostfile=tmp_path)
    with pytest.raises(UsageError, match="-H contradicts srun, which has started 2 processes, each of which"):
        of(SLURM, hosts="a:2")


def test_a_pod_knows_the_first_one() -> None:
    place = of(POD).place
    assert place is not None
    assert (place.rank, place.world_size, place.master_address) == (1, 2, "train-workers-0-0.train")
    with pytest.raises(UsageError, match="cannot tell where the first pod is"):
        of({"RONDE_PODS": "2", "JOB_COMPLETION_INDEX": "1"})
