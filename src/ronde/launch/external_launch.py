"""Join the ranks that torchrun, MPI or Slurm has started.

This process becomes one of them. The first rank of a host also starts an observer process, which explains why
ranks of this host fail or wait.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ronde.cluster.cores import available_cores
from ronde.cluster.environment import ClusterEnvironment, forced_threads
from ronde.cluster.reach import candidates, is_this_host, listen_everywhere
from ronde.cluster.slurm import has_own_devices
from ronde.errors import LaunchError, UsageError
from ronde.launch.job import LaunchJob
from ronde.launch.process_cleanup import remove_temporary_of_the_dead
from ronde.launch.rank_config import RankConfig, RankPlace
from ronde.launch.rank_environment import rank_environment, threads_per_rank
from ronde.launch.shared_devices import is_shared
from ronde.launch.store_process import start_store
from ronde.plan import Plan
from ronde.trace.launch_record import write_launch_record

__all__ = [
    "OBSERVER_KEY",
    "become_rank",
    "check_store",
    "find_store",
    "shared_run_id",
    "shared_seed",
    "silence",
]

# Variable with the observer's configuration, as JSON.
OBSERVER_KEY = "RONDE_OBSERVER"

# Seconds for which ranks of other hosts look for rank 0's address in the run directory.
_MEETING_S = 60.0
_LINGER_S = 3.0


def become_rank(
    job: LaunchJob,
    place: ClusterEnvironment,
    observer: Sequence[str] = (),
    scraped: socket.socket | None = None,
) -> NoReturn:
    """Replace this process by the worker of its rank.

    Ranks meet at the agent's own store, or at rank 0's. The launcher still handles rank 0's output; other
    ranks write to their logs.

    Args:
        observer: command of the process that explains failures of this host's ranks; (): none.
        scraped: socket at which that process answers with their metrics.

    Raises:
        UsageError, LaunchError: the ranks cannot run in this way.
    """
    check_store(place)
    if Plan.parse(job.run.plan).state.server_count and not job.run.servers:
        raise UsageError(
            f"{place.launcher} does not start parameter servers: start each with `ronde server --listen "
            "tcp://HOST:PORT`, and give --servers tcp://HOST:PORT,... to every rank [R418]"
        )
    own = has_own_devices(job.environment)
    if job.devices and place.local_world_size > len(job.devices) and not own:
        raise LaunchError(
            f"{place.launcher} has started {place.local_world_size} ranks on this host, but it offers "
            f"{len(job.devices)} CUDA devices; {_fewer(place, len(job.devices))} [R180]"
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
        _config(job, place, observed=bool(observer)),
        run_id=job.run_directory.run_id,
        threads=threads,
        device=job.devices[0 if own else place.local_rank] if job.devices else None,
        shared=not own and is_shared(job.devices[: place.local_world_size]),
    )
    if place.local_rank == 0 and observer:
        _start_observer(job, place, observer, scraped)
    if place.rank != 0:
        silence(job.run_directory.log(place.rank))
    os.execve(job.run.worker[0], job.run.worker, environment)


def check_store(place: ClusterEnvironment) -> None:
    """Raise LaunchError if ranks have no store for their rendezvous."""
    if place.launcher == "torchrun" and not place.agent_store:
        raise LaunchError(
            "this torchrun does not share its store with the ranks; unset "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE [R180]"
        )


def shared_run_id(place: ClusterEnvironment, agent: int) -> str:
    """Return a new run id that all ranks of one torchrun agent derive alike.

    The agent's start time distinguishes runs that share torchrun's default id. Agents of several hosts may
    have equal start times, and equal process ids in containers; the first rank of each host distinguishes
    them.
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
    """Derive a seed that all ranks of all hosts share from torchrun's run id."""
    mark = f"{place.run_id} {place.master_address} {place.master_port}"
    return int.from_bytes(hashlib.sha256(mark.encode()).digest()[:4], "big") % 2**31


def _fewer(place: ClusterEnvironment, devices: int) -> str:
    return (
        f"use --nproc-per-node {devices}" if place.launcher == "torchrun" else f"start {devices} on each host"
    )


def _with_store(job: LaunchJob, place: ClusterEnvironment) -> ClusterEnvironment:
    """Return the place with the store's address; rank 0 starts a missing store."""
    mark = hashlib.sha256(f"{place.run_id} {place.restart_count}".encode()).hexdigest()[:12]
    meeting = job.run_directory.path.parent / f"meeting-{mark}"
    address, port = find_store(place, meeting, job.run_directory.store_log)
    return dataclasses.replace(place, master_address=address, master_port=port)


def _config(job: LaunchJob, place: ClusterEnvironment, *, observed: bool) -> RankConfig:
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
        observed=observed,
    )
    return RankConfig(run=job.run, place=of_rank)


def silence(log: Path) -> None:
    """Redirect stdout and stderr to the log by descriptor, for C code too."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(nothing)
    os.close(target)


def find_store(place: ClusterEnvironment, meeting: Path, log: Path) -> tuple[str, int]:
    """Return address and port of the store.

    Rank 0's call starts it, in a process that ends shortly after rank 0.

    Args:
        log: file for the output of the store's process.
        meeting: a file that all hosts see; used if the launcher does not tell where rank 0 is.

    Raises:
        LaunchError: the port is in use, or rank 0 was not found.
    """
    if place.agent_store:
        return place.master_address, place.master_port
    if place.rank:
        return (place.master_address, place.master_port) if place.master_address else _await(place, meeting)
    if place.master_address and not is_this_host(place.master_address):
        raise LaunchError(
            f"MASTER_ADDR={place.master_address} must be the host of rank 0, which is "
            f"{socket.gethostname()}; set it to an address of that host, or unset it [R162]"
        )
    try:
        listener = listen_everywhere(place.master_port)
    except OSError as error:
        raise LaunchError(
            f"port {place.master_port}, where the ranks of this job meet, cannot be opened "
            f"({os.strerror(error.errno or 0)}); choose another for all of them: MASTER_PORT=N [R162]"
        ) from None
    with listener:
        start_store(listener, log, linger=_LINGER_S)
        port = listener.getsockname()[1]
    if place.master_address:
        return place.master_address, port
    address = candidates(["192.0.2.1"])[0]
    _write(meeting, f"{address} {port}\n")
    return address, port


def _await(place: ClusterEnvironment, meeting: Path) -> tuple[str, int]:
    end = time.monotonic() + _MEETING_S
    while time.monotonic() < end:
        try:
            words = meeting.read_text().split()
        except OSError:
            words = []
        if len(words) == 2:
            return words[0], int(words[1])
        time.sleep(0.1)
    raise LaunchError(
        f"{place.launcher} does not tell rank {place.rank} on {socket.gethostname()} where rank 0 is, and "
        f"{meeting.parent} is not shared with it; pass MASTER_ADDR, the first host's address, to all ranks "
        "(mpirun -x MASTER_ADDR=... or -genv MASTER_ADDR ...), or give a shared --run-dir [R161]"
    )


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.rename(path)
    except OSError as error:
        raise LaunchError(
            f"cannot write {path}, where other hosts look for rank 0: {error.strerror}; give another "
            "--run-dir [R161]"
        ) from None


def _start_observer(
    job: LaunchJob, place: ClusterEnvironment, command: Sequence[str], scraped: socket.socket | None
) -> None:
    """Start the observer of this host, before this process becomes a rank.

    It is a detached process in a session of its own, so that neither the script nor the launcher's end of
    ranks affects it. It writes to this process's stderr, and ends with the ranks.

    Args:
        command: calls `observe`.
    """
    told = {
        # Ranks report a good end themselves. The token must stay secret.
        "run": dataclasses.asdict(dataclasses.replace(job.run, quiet=True, server_token="")),
        "ranks": place.world_size,
        "first_rank": place.rank,
        "here": place.local_world_size,
        "directory": str(job.run_directory.path),
        "run_id": job.run_directory.run_id,
        "main": os.getpid(),
        "since": time.time() - _age(),
        "scraped": None if scraped is None else scraped.fileno(),
    }
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if not os.fork():
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 0)
            os.dup2(nothing, 1)
            if scraped is not None:
                scraped.set_inheritable(True)
            os.execve(command[0], list(command), {**job.environment, OBSERVER_KEY: json.dumps(told)})
    finally:
        os._exit(0)


def _age() -> float:
    """Seconds since this process was started."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
