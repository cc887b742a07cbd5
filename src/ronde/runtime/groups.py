"""Process groups of a session's ranks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from ronde.cluster.own_address import CHOSEN_INTERFACE, own_address
from ronde.comm.lockstep_check import LockstepCheck
from ronde.comm.process_group import Comm
from ronde.comm.rendezvous import join
from ronde.comm.topology import RankPosition
from ronde.launch.rank_config import RankConfig
from ronde.plan.communication import Algorithm
from ronde.process.signal_board import SignalBoard
from ronde.process.signals import COUNTED
from ronde.trace.lockstep_board import LockstepBoard, board_path
from ronde.trace.run_hosts import RunHost, write_hosts

__all__ = ["join_group", "join_some", "listens_on", "note_hosts", "shares_memory", "signal_board"]

# The launcher ends a run that hangs for `RankConfig.timeout`, and its message says more than the backend's.
_BACKEND_LATER = 60.0
# Longest time without any data from another host; networks that recover by themselves take up to half of it.
_SILENCE_S = 60.0


def join_group(
    config: RankConfig,
    name: str,
    host: str | None,
    algorithm: Algorithm,
    own_file: Callable[[str], bool],
) -> Comm:
    """Join the other ranks in the group of this name.

    Args:
        host: the address by which they reach this one; None leaves it to the backend.
        own_file: see `LockstepCheck`.
    """
    at = config.place
    place = RankPosition(at.rank, at.world_size, at.local_rank, at.local_world_size)
    return join(
        at.store, name=name, place=place, device=at.device,
        timeout=timedelta(seconds=config.run.timeout + _BACKEND_LATER), host=host,
        check=_check(config, name, own_file), silence=min(_SILENCE_S, config.run.timeout),
        algorithm=algorithm,
    )  # fmt: skip


def join_some(
    config: RankConfig, name: str, host: str | None, algorithm: Algorithm, members: Sequence[int]
) -> Comm:
    """Join a group of some of the ranks, this one among them.

    Args:
        name: groups of other members have other names.
        members: their ranks, in the order of those in the group.
    """
    at = config.place
    first = at.rank - at.local_rank
    here = [rank for rank in members if first <= rank < first + at.local_world_size]
    place = RankPosition(members.index(at.rank), len(members), here.index(at.rank), len(here))
    return join(
        at.store, name=f"{name}/{_digest(members)}", place=place, device=at.device,
        timeout=timedelta(seconds=config.run.timeout + _BACKEND_LATER), host=host,
        silence=min(_SILENCE_S, config.run.timeout), algorithm=algorithm,
    )  # fmt: skip


def _digest(members: Sequence[int]) -> str:
    """Return a short name for these ranks. Each key in the store begins with it."""
    return hashlib.sha256(repr(list(members)).encode()).hexdigest()[:16]


def listens_on(config: RankConfig) -> str | None:
    """Return this rank's address for the others; None leaves it to the backend."""
    if config.place.store.startswith("file://"):
        return "127.0.0.1"
    if config.place.address and not os.environ.get(CHOSEN_INTERFACE):
        return config.place.address
    several_hosts = config.place.local_world_size < config.place.world_size
    return own_address(
        config.place.master_address,
        config.place.master_port,
        several_hosts=several_hosts,
        environment=os.environ,
    )


def shares_memory(config: RankConfig) -> bool:
    """Return whether this host has all ranks, and more than one."""
    return 1 < config.place.world_size == config.place.local_world_size


def note_hosts(config: RankConfig, everybody: Comm) -> None:
    """Write the hosts of all ranks for this host's observer.

    The observer knows only its own host.
    """
    topology, place = everybody.topology, config.place
    if topology is not None and place.local_rank == 0 and not place.watched:
        described = zip(topology.names, topology.hosts, topology.addresses, strict=True)
        hosts = [RunHost(name=name, ranks=ranks, address=address) for name, ranks, address in described]
        write_hosts(Path(place.run_dir), hosts)


def signal_board(config: RankConfig) -> SignalBoard:
    """Open the board of signal counts of this host's ranks."""
    path = board_path(Path(config.place.run_dir), "signals")
    return SignalBoard(path, config.place.local_rank, config.place.local_world_size, len(COUNTED))


def _check(config: RankConfig, name: str, own_file: Callable[[str], bool]) -> LockstepCheck | None:
    """Make the lockstep check of this host's ranks.

    None for a single rank without an agent or an observer that reads the board.
    """
    at = config.place
    if at.local_world_size == 1 and (at.world_size == 1 or not (at.watched or at.observed)):
        return None
    path = board_path(Path(config.place.run_dir), name)
    board = LockstepBoard(path, config.place.local_rank, config.place.local_world_size)
    return LockstepCheck(board, first_rank=config.place.rank - config.place.local_rank, own_file=own_file)
