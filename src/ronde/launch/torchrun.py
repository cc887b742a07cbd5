"""Join the ranks that others have started (`torchrun ... -m ronde run SCRIPT`): this process becomes one."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import NoReturn

from ronde.cluster.cores import available_cores
from ronde.cluster.environment import ClusterEnvironment, forced_threads
from ronde.cluster.slurm import has_own_devices
from ronde.errors import LaunchError, UsageError
from ronde.launch.job import Job
from ronde.launch.joined import find_store
from ronde.launch.rank_config import RankConfig, RankPlace
from ronde.launch.rank_environment import rank_environment, threads_per_rank
from ronde.launch.sweep import remove_temporary_of_the_dead
from ronde.plan import Plan
from ronde.trace.launch_record import write_launch_record

__all__ = ["become_rank", "check_store", "shared_run_id", "shared_seed", "silence"]


def become_rank(job: Job, place: ClusterEnvironment) -> NoReturn:
    """Replace this process by the worker of its rank; ranks meet at the agent's own store, or at rank 0's.

    Rank 0's output stays the launcher's business; any other's goes to its log.
    """
    check_store(place)
    if Plan.parse(job.run.plan).state.server_count and not job.run.servers:
        raise UsageError(
            f"{place.launcher} starts ranks, and no parameter servers: start each with `ronde server "
            "--listen tcp://HOST:PORT`, and give --servers tcp://HOST:PORT,... to every rank"
        )
    own = has_own_devices(job.environment)
    if job.devices and place.local_world_size > len(job.devices) and not own:
        raise LaunchError(
            f"{place.launcher} has started {place.local_world_size} ranks on this host, but it offers "
            f"{len(job.devices)} CUDA devices; {_fewer(place, len(job.devices))}"
        )
    if place.local_rank == 0:
        remove_temporary_of_the_dead()
        write_launch_record(job.run_directory.launch, job.launch_record((), watched=False))
    given = dict(job.environment)
    place = _with_store(job, place)
    if place.launcher == "torchrun" and forced_threads(given, os.getppid()):
        del given["OMP_NUM_THREADS"]
    threads = threads_per_rank(
        given, asked=job.run.threads, cores=available_cores(), ranks=place.local_world_size
    )
    environment = rank_environment(
        given,
        _config(job, place),
        run_id=job.run_directory.run_id,
        threads=threads,
        device=job.devices[0 if own else place.local_rank] if job.devices else None,
    )
    if place.rank != 0:
        silence(job.run_directory.log(place.rank))
    os.execve(job.run.worker[0], job.run.worker, environment)


def check_store(place: ClusterEnvironment) -> None:
    """Raise LaunchError where ranks have no store to meet at."""
    if place.launcher == "torchrun" and not place.agent_store:
        raise LaunchError(
            "this torchrun does not share its store with the ranks; unset TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
        )


def shared_run_id(place: ClusterEnvironment, agent: int) -> str:
    """A run id that all ranks of one torchrun agent find by themselves, and no earlier run had.

    The agent's start time tells runs apart that share torchrun's default id. Agents of several hosts may have
    started at once, in containers under one number too: their first ranks tell them apart.
    """
    try:
        started = Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        started = "0"
    mark = (
        f"{place.run_id} {place.master_address} {place.master_port} {started} {agent} {place.restart_count} "
        f"{place.rank - place.local_rank}"
    )
    by = "torchrun" if place.launcher == "torchrun" else "joined"
    return f"{by}-{hashlib.sha256(mark.encode()).hexdigest()[:12]}"


def shared_seed(place: ClusterEnvironment) -> int:
    """A seed that all ranks of all hosts find by themselves: from torchrun's run id."""
    mark = f"{place.run_id} {place.master_address} {place.master_port}"
    return int.from_bytes(hashlib.sha256(mark.encode()).digest()[:4], "big") % 2**31


def _fewer(place: ClusterEnvironment, devices: int) -> str:
    return (
        f"use --nproc-per-node {devices}" if place.launcher == "torchrun" else f"start {devices} on each host"
    )


def _with_store(job: Job, place: ClusterEnvironment) -> ClusterEnvironment:
    """The place with the store's address, which rank 0 makes where nobody else has."""
    mark = hashlib.sha256(f"{place.run_id} {place.restart_count}".encode()).hexdigest()[:12]
    meeting = job.run_directory.path.parent / f"meeting-{mark}"
    address, port = find_store(place, meeting, job.run_directory.store_log)
    return dataclasses.replace(place, master_address=address, master_port=port)


def _config(job: Job, place: ClusterEnvironment) -> RankConfig:
    of_rank = RankPlace(
        rank=place.rank,
        world_size=place.world_size,
        local_rank=place.local_rank,
        local_world_size=place.local_world_size,
        host=place.node or 0,
        hosts=place.nodes or 1,
        run_dir=str(job.run_directory.path),
        store=f"tcp://{place.master_address}:{place.master_port}",
        master_address=place.master_address,
        master_port=place.master_port,
        device="cuda" if job.devices else "cpu",
        terminal=os.isatty(0),
    )
    return RankConfig(run=job.run, place=of_rank)


def silence(log: Path) -> None:
    """Lead this process's output to its log, on the level of descriptors so that C code follows too."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(nothing)
    os.close(target)
