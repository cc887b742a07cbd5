"""The place of a process under `mpirun` of Open MPI, MPICH and Intel MPI."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ronde.cluster.environment import ClusterEnvironment, number_in
from ronde.cluster.master import master
from ronde.cluster.slurm import expand_nodes
from ronde.errors import UsageError

__all__ = ["process_of_mpi"]


def process_of_mpi(environment: Mapping[str, str], parent: int) -> ClusterEnvironment | None:
    """Read the place of a process of `mpirun`; None outside of a job.

    Where rank 0 is on another host and nothing tells which, `master_address` is "": the ranks then look
    for it in the run directory (see `launch.external_launch`).

    Args:
        parent: pid of the process that started this one, which distinguishes jobs of one host.
    """
    if "OMPI_COMM_WORLD_RANK" in environment:
        name = "Open MPI"
        rank, size, local, locals_ = (
            number_in(environment, f"OMPI_COMM_WORLD_{what}", "mpirun")
            for what in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        )
    elif "PMI_RANK" in environment and "MPI_LOCALNRANKS" in environment:
        name = "Intel MPI" if any(key.startswith("I_MPI_") for key in environment) else "MPICH"
        rank, size, local, locals_ = (
            number_in(environment, key, "mpirun")
            for key in ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
        )
    else:
        return None
    if size == 1:
        return None
    here = locals_ == size
    job = _job(environment)
    if not job and here:
        job = f"process {parent}"
    if not job and not environment.get("MASTER_ADDR"):
        raise UsageError(
            f"mpirun of {name} does not tell the ranks of several hosts where rank 0 is; tell them the first "
            "host's address: mpirun -genv MASTER_ADDR 10.0.0.5 ... [R161]"
        )
    address, port = master(environment, "127.0.0.1" if here else _first_host(environment), f"mpi {job}")
    return ClusterEnvironment(
        rank=rank,
        world_size=size,
        local_rank=local,
        local_world_size=locals_,
        master_address=address,
        master_port=port,
        run_id=f"mpi-{job}",
        restart_count=0,
        agent_store=False,
        launcher=f"mpirun of {name}",
        node=0 if here else None,
        nodes=1 if here else None,
    )


def _job(environment: Mapping[str, str]) -> str:
    """Return an identifier of this job, equal on its hosts; "" without one."""
    for key in (
        "PMIX_NAMESPACE",
        "OMPI_MCA_ess_base_jobid",
        "I_MPI_HYDRA_UUID",
        "PMI_JOBID",
        "SLURM_JOB_ID",
        "PBS_JOBID",
        "LSB_JOBID",
    ):
        if environment.get(key):
            return f"{key} {environment[key]}"
    return ""


def _first_host(environment: Mapping[str, str]) -> str:
    """Return the first host of the surrounding scheduler's job; "" without one."""
    if environment.get("SLURM_JOB_NODELIST"):
        return expand_nodes(environment["SLURM_JOB_NODELIST"])[0]
    for key in ("PBS_NODEFILE", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE"):
        try:
            words = Path(environment[key]).read_text().split()
        except (KeyError, OSError):
            continue
        if words:
            return words[0]
    return ""
