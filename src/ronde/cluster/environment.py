"""The place of a process by its launcher's variables, torchrun's first."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from ronde.errors import UsageError

__all__ = ["ClusterEnvironment", "forced_threads", "hidden_from_script", "marks_of_schedulers", "number_in"]

NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
OTHERS = (
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)
# Variables that number processes. SLURM_JOB_ID and others that describe the job stay.
SCHEDULERS = frozenset(
    """
    PMI_RANK PMI_SIZE PMIX_RANK MPI_LOCALRANKID MPI_LOCALNRANKS MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE
    SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS SLURM_NPROCS SLURM_STEP_NUM_TASKS
    SLURM_NTASKS_PER_NODE SLURM_TASKS_PER_NODE SLURM_STEP_TASKS_PER_NODE JOB_COMPLETION_INDEX
    """.split()
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClusterEnvironment:
    """One rank's place in a job that another launcher has started.

    Attributes:
        master_address, master_port: address at which ranks meet; "" and 0 if unknown.
        agent_store: whether a store runs already; otherwise rank 0 starts one.
        launcher: name of its launcher.
        node, nodes: number of this host, and of all, if known.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_address: str
    master_port: int
    run_id: str
    restart_count: int
    agent_store: bool
    launcher: str = "torchrun"
    node: int | None = None
    nodes: int | None = None

    @classmethod
    def detect(cls, environment: Mapping[str, str]) -> ClusterEnvironment | None:
        """Return the place of this process; None if `torchrun` has not started it.

        Raises UsageError if another launcher has numbered this process: ignoring that would start a separate
        run for each rank.
        """
        if "TORCHELASTIC_RUN_ID" not in environment:
            return cls._by_variables(environment)
        missing = [name for name in NEEDED if name not in environment]
        if missing:
            raise UsageError(
                f"the torchrun environment is incomplete: {', '.join(missing)} missing; "
                "unset TORCHELASTIC_RUN_ID to start ranks on this host [R180]"
            )
        numbers = {name: number_in(environment, name, "torchrun") for name in NEEDED if name != "MASTER_ADDR"}
        return cls(
            rank=numbers["RANK"],
            world_size=numbers["WORLD_SIZE"],
            local_rank=numbers["LOCAL_RANK"],
            local_world_size=numbers["LOCAL_WORLD_SIZE"],
            master_address=environment["MASTER_ADDR"],
            master_port=numbers["MASTER_PORT"],
            run_id=environment["TORCHELASTIC_RUN_ID"],
            restart_count=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
            agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )

    @classmethod
    def _by_variables(cls, environment: Mapping[str, str]) -> ClusterEnvironment | None:
        """Return the place by torch's variables, as Kubeflow's PyTorch operator sets them."""
        if environment.get("WORLD_SIZE", "1") in ("", "1"):
            return None
        missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
        if missing:
            raise UsageError(
                f"WORLD_SIZE={environment['WORLD_SIZE']} is set, but not by torchrun, and "
                f"{', '.join(missing)} missing: ronde cannot tell who starts the ranks; start them with "
                "`torchrun ... -m ronde run SCRIPT`, or unset WORLD_SIZE and RANK [R180]"
            )
        names = ("RANK", "WORLD_SIZE", "MASTER_PORT")
        numbers = {name: number_in(environment, name, "torchrun") for name in names}
        locals_ = {
            name: number_in(environment, name, "torchrun") if environment.get(name) else default
            for name, default in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))
        }
        address = environment["MASTER_ADDR"]
        return cls(
            rank=numbers["RANK"],
            world_size=numbers["WORLD_SIZE"],
            local_rank=locals_["LOCAL_RANK"],
            local_world_size=locals_["LOCAL_WORLD_SIZE"],
            master_address=address,
            master_port=numbers["MASTER_PORT"],
            run_id=f"env {address} {numbers['MASTER_PORT']}",
            restart_count=0,
            agent_store=False,
            launcher="RANK and WORLD_SIZE",
        )


def hidden_from_script(names: Mapping[str, str]) -> frozenset[str]:
    """Return the variables by which libraries detect a distributed script."""
    return frozenset(
        name for name in names if name in NEEDED or name in OTHERS or name.startswith("TORCHELASTIC_")
    )


def marks_of_schedulers(names: Mapping[str, str]) -> frozenset[str]:
    """Return the names that mark a process as one of MPI's or Slurm's."""
    return frozenset(name for name in names if name in SCHEDULERS or name.startswith("OMPI_COMM_WORLD_"))


def forced_threads(environment: Mapping[str, str], agent: int) -> bool:
    """Return whether torchrun, not the user, has set OMP_NUM_THREADS=1.

    It does so unless the variable is set; `/proc/AGENT/environ` still shows the environment with
    which the agent was started.
    """
    if environment.get("OMP_NUM_THREADS") != "1":
        return False
    try:
        original = Path(f"/proc/{agent}/environ").read_bytes()
    except OSError:
        return False
    return not any(entry.startswith(b"OMP_NUM_THREADS=") for entry in original.split(b"\0"))


def number_in(environment: Mapping[str, str], name: str, launcher: str) -> int:
    """Return the number that a variable holds.

    Raises:
        UsageError: the variable is not set, or not a number.
    """
    try:
        return int(environment[name])
    except KeyError:
        raise UsageError(
            f"{name} is not set, but others of {launcher} are; start the ranks by {launcher} [R160]"
        ) from None
    except ValueError:
        raise UsageError(
            f"{name}={environment[name]!r} is not a number; unset it, or start with {launcher} [R180]"
        ) from None
