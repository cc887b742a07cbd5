"""Rendezvous of ranks: the store, and the backend that fits hosts and plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ronde.comm import ring, tree
from ronde.comm.backend import Backend, SharedMemoryBackend, TorchBackend
from ronde.comm.background import BackgroundBackend
from ronde.comm.by_device import ByDevice
from ronde.comm.device_library import device_group, library_of
from ronde.comm.hierarchical import Hierarchical
from ronde.comm.keepalive import keep_alive
from ronde.comm.lockstep_check import LockstepCheck
from ronde.comm.process_group import Comm
from ronde.comm.shared_memory import SharedMemory
from ronde.comm.single_rank import SingleRank
from ronde.comm.store_exchange import exchange_by
from ronde.comm.topology import RankPosition, Topology, learn
from ronde.comm.transport import TorchTransport
from ronde.errors import LaunchError
from ronde.patching.torch_internals import gloo_options
from ronde.plan.algorithm import AlgorithmChoice, choose
from ronde.plan.communication import Algorithm

__all__ = ["connect_store", "join"]


# Longest time for a store to come up; its rank 0, in a pod, may start minutes after others.
_STORE_ANSWERS = timedelta(minutes=10)


def connect_store(address: str, world_size: int, timeout: timedelta) -> dist.Store:
    """Open the store named `file://PATH` or `tcp://HOST:PORT` (a server that runs already)."""
    scheme, _, rest = address.partition("://")
    if scheme == "file":
        return dist.FileStore(rest, world_size)
    if scheme == "tcp":
        host, _, port = rest.rpartition(":")
        store = dist.TCPStore(host, int(port), is_master=False, timeout=min(timeout, _STORE_ANSWERS))
        store.set_timeout(timeout)
        return store
    raise LaunchError(f"unknown store {address!r}; use file://PATH or tcp://HOST:PORT [R184]")


def join(  # noqa: PLR0913 - each is one word of what is joined
    address: str,
    *,
    name: str,
    place: RankPosition,
    device: str,
    timeout: timedelta,
    host: str | None,
    check: LockstepCheck | None = None,
    algorithm: Algorithm = "auto",
    silence: float = 60.0,
) -> Comm:
    """Join the group `name` of all ranks that use the store `address`.

    Args:
        address: `file://PATH` or `tcp://HOST:PORT`.
        name: the group's name; groups of different names on one store are separate.
        place: the place of this rank among the others.
        device: "cpu" (shared memory within a host, Gloo), or a type of accelerator ("cuda": NCCL, and Gloo
            for host memory).
        timeout: the time that a collective waits for a peer.
        host: the address to listen on; None lets the backend look the host name up.
        check: comparison of the operations of this host's ranks; None for no comparison.
        algorithm: the all-reduce algorithm in the plan.
        silence: seconds without any sign from another host after which it counts as lost.

    Raises:
        LaunchError: the group could not be formed.
        PlanError: the algorithm does not fit these hosts.
    """
    rank, world_size = place.rank, place.world_size
    try:
        with keep_alive(silence):
            store = dist.PrefixStore(f"ronde/{name}", connect_store(address, world_size, timeout))
            meeting = _Meeting(store, place, device, timeout, host)
            if world_size == 1:
                joined = meeting.nobody()
            elif place.on_one_host:
                joined = meeting.one_host(algorithm)
            else:
                joined = meeting.several_hosts(algorithm)
    except (RuntimeError, ValueError) as error:  # the latter of NCCL without a device
        raise LaunchError(
            f"rank {rank} could not join its {world_size - 1} peers at {address}: {error} [R183]"
        ) from error
    return Comm(
        joined.backend,
        rank=rank,
        world_size=world_size,
        store=store,
        check=check,
        topology=joined.topology,
        algorithm=str(joined.choice),
        note=joined.note,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Rendezvous:
    """Result of a rendezvous: backend, reason for its choice, note for the user."""

    backend: Backend
    choice: AlgorithmChoice
    topology: Topology | None = None
    note: str | None = None


class _Meeting:
    """Creates the backend of one group."""

    def __init__(
        self, store: Any, place: RankPosition, device: str, timeout: timedelta, host: str | None
    ) -> None:
        self._store = store
        self._place = place
        self._device = device
        self._timeout = timeout
        self._host = host

    def nobody(self) -> _Rendezvous:
        """Create the backend of a single rank. The plan's algorithm does not matter without communication."""
        return _Rendezvous(backend=SingleRank(on_cuda=self._device == "cuda"), choice=choose("auto", (1,)))

    def one_host(self, algorithm: Algorithm) -> _Rendezvous:
        choice = choose(algorithm, (self._place.world_size,), device=self._device)
        if choice.algorithm == "shared-memory":
            try:
                return _Rendezvous(backend=SharedMemoryBackend(self._shared_memory(0)), choice=choice)
            except LaunchError as error:
                choice = AlgorithmChoice(algorithm="backend", reason="Gloo, because memory cannot be shared")
                note = f"{error}; ranks exchange data by Gloo, which is slower [R321]"
                return _Rendezvous(backend=self._torch()[0], choice=choice, note=note)
        topology = Topology.of_sizes((self._place.world_size,))
        return _Rendezvous(backend=self._summing(choice, topology, *self._torch()), choice=choice)

    def several_hosts(self, algorithm: Algorithm) -> _Rendezvous:
        torchs, group = self._torch()
        topology = learn(self._gather(torchs), self._place, address=self._host)
        choice = choose(algorithm, topology.sizes, device=self._device)
        if choice.algorithm != "hierarchical":
            backend = self._summing(choice, topology, torchs, group)
            return _Rendezvous(backend=backend, choice=choice, topology=topology)
        within, problem = None, ""
        number = topology.host_of(self._place.rank)
        if topology.sizes[number] > 1:
            try:
                within = self._shared_memory(number)
            except LaunchError as error:
                problem = str(error)
        # Other hosts must do the same, and do not know of the failure.
        if any(self._gather(torchs)(torch.tensor([bool(problem)])).flatten().tolist()):
            if within is not None:
                within.close()
            choice = AlgorithmChoice(
                algorithm="backend", reason="Gloo, because memory cannot be shared on some host"
            )
            note = f"{problem}; ranks exchange data by Gloo, which is slower [R321]" if problem else None
            return _Rendezvous(backend=torchs, choice=choice, topology=topology, note=note)
        backend = self._hierarchical(topology, within, torchs, group)
        return _Rendezvous(backend=backend, choice=choice, topology=topology)

    def _summing(self, choice: AlgorithmChoice, topology: Topology, torchs: Backend, group: Any) -> Backend:
        """Return torch's backend, or an algorithm among all ranks on top of it."""
        if choice.algorithm == "backend":
            return torchs
        ranks = range(self._place.world_size)
        transport = TorchTransport(group, ranks, self._place.rank)
        reduce = ring.all_reduce if choice.algorithm == "ring" else tree.all_reduce
        own_row = self._place.rank if choice.algorithm == "tree" else None
        return BackgroundBackend(
            choice.algorithm, lambda flat: reduce(transport, flat), torchs, own_row=own_row
        )

    def _hierarchical(
        self, topology: Topology, within: SharedMemory | None, torchs: Backend, group: Any
    ) -> Backend:
        rank = self._place.rank
        local_rank = topology.local_rank_of(rank)
        column = topology.column(local_rank)
        sums = Hierarchical(
            within,
            TorchTransport(group, column, rank) if column else None,
            local_rank=local_rank,
            sizes=topology.sizes,
            host=topology.host_of(rank),
        )

        return BackgroundBackend("hierarchical", sums.all_reduce, torchs, [sums], own_row=rank)

    def _shared_memory(self, host: int) -> SharedMemory:
        """Create memory shared by the ranks of this host, number `host` of all."""
        place = self._place
        exchange = exchange_by(
            dist.PrefixStore(str(host), self._store), place.local_rank, place.local_world_size
        )
        first = place.rank - place.local_rank
        return SharedMemory(
            place.local_rank, place.local_world_size, exchange, timeout=self._timeout, first_rank=first
        )

    def _gather(self, backend: Backend) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return a function that gathers a small tensor of each rank on all ranks."""

        def gather(mine: torch.Tensor) -> torch.Tensor:
            flat = mine.view(torch.uint8)
            out = torch.empty((self._place.world_size, flat.numel()), dtype=torch.uint8, device="cpu")
            work = backend.all_gather(out, flat)
            if work is not None:
                work.wait()
            return out

        return gather

    def _torch(self) -> tuple[Backend, Any]:
        """Make torch's backend, and its group of tensors in host memory."""
        rank, world_size = self._place.rank, self._place.world_size
        if self._device == "cpu":
            group = _gloo(self._store, rank, world_size, self._timeout, self._host)
            return TorchBackend(group), group
        library = library_of(self._device)
        group = _gloo(dist.PrefixStore("host", self._store), rank, world_size, self._timeout, self._host)
        on_device = device_group(self._device, self._store, rank, world_size, self._timeout)
        return ByDevice(TorchBackend(on_device, library), TorchBackend(group)), group


def _gloo(store: dist.Store, rank: int, world_size: int, timeout: timedelta, host: str | None) -> Any:
    from torch.distributed import ProcessGroupGloo

    device = (
        ProcessGroupGloo.create_device(hostname=host) if host else ProcessGroupGloo.create_default_device()
    )
    return ProcessGroupGloo(store, rank, world_size, gloo_options(device, timeout, threads=2))
