"""Placement of ranks, from flags or from variables of ronde, torch or a scheduler."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from ronde.cluster.environment import ClusterEnvironment
from ronde.cluster.host_list import HostSlots, parse_hosts, read_hostfile
from ronde.cluster.kubernetes import pod_of_job
from ronde.cluster.mpi import process_of_mpi
from ronde.cluster.slurm import allocation, task_of_step
from ronde.errors import UsageError

__all__ = ["HOSTFILE_KEY", "HOSTS_KEY", "Placement", "resolve_placement"]

# As Kubeflow's trainer sets them.
TORCHRUN_SETTINGS = ("PET_NNODES", "PET_NPROC_PER_NODE")
HOSTS_KEY, HOSTFILE_KEY = "RONDE_HOSTS", "RONDE_HOSTFILE"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """A placement of ranks on hosts.

    Attributes:
        origin: source of the decision, for the start line; "" for this host.
        hosts: the hosts, with their slots; () if none were named.
        by_srun: whether hosts are nodes of an allocation, reached by srun.
        by_ray: address of the Ray cluster whose nodes are the hosts.
        place: place of this process in the job of another launcher; None outside of one.
        by_torchrun: whether torchrun should start the ranks: its variables PET_* are set, but it does not
            run.
    """

    origin: str = ""
    hosts: tuple[HostSlots, ...] = ()
    by_srun: bool = False
    by_ray: str = ""
    place: ClusterEnvironment | None = None
    by_torchrun: bool = False


def resolve_placement(
    hosts: str | None, hostfile: Path | None, environment: Mapping[str, str], *, devices: int, parent: int
) -> Placement:
    """Return the placement by the first source that names one.

    Sources are, in order: flags, ronde's own variables, torch's, a scheduler's.

    Args:
        hosts, hostfile: the flags.
        devices: CUDA devices of this host.
        parent: the process that has started this one.

    Raises:
        UsageError: two of them contradict each other.
    """
    named, origin = _named(hosts, hostfile, environment)
    place = _place(environment, parent)
    if named and place is not None:
        raise UsageError(
            f"{origin} contradicts {place.launcher}, which has started {place.world_size} processes, each of "
            f"which would start all ranks; leave {origin} out, or start `ronde run` once [R137]"
        )
    if named:
        return Placement(origin=origin, hosts=named)
    if place is not None:
        return Placement(origin=place.launcher, place=place)
    if any(environment.get(name, "1") not in ("", "1") for name in TORCHRUN_SETTINGS):
        return Placement(origin="PET_*", by_torchrun=True)
    nodes = allocation(environment, devices)
    if nodes:
        return Placement(origin="Slurm's allocation", hosts=nodes, by_srun=True)
    return Placement()


def _named(
    hosts: str | None, hostfile: Path | None, environment: Mapping[str, str]
) -> tuple[tuple[HostSlots, ...], str]:
    """Return the hosts that the user has named, and the option."""
    if hosts is not None and hostfile is not None:
        raise UsageError("-H and --hostfile both name the hosts; leave one of them out [R134]")
    if hosts is not None:
        return parse_hosts(hosts), "-H"
    if hostfile is not None:
        return read_hostfile(hostfile), "--hostfile"
    if environment.get(HOSTS_KEY):
        return parse_hosts(environment[HOSTS_KEY]), HOSTS_KEY
    if environment.get(HOSTFILE_KEY):
        return read_hostfile(Path(os.path.expanduser(environment[HOSTFILE_KEY]))), HOSTFILE_KEY
    return (), ""


def _place(environment: Mapping[str, str], parent: int) -> ClusterEnvironment | None:
    """Read this process's place from torch's, MPI's, Slurm's or a pod's variables."""
    return (
        ClusterEnvironment.detect(environment)
        or process_of_mpi(environment, parent)
        or task_of_step(environment)
        or pod_of_job(environment)
    )
