"""The engine of one rank: exchanges tensors that are submitted by name.

caller              submits a request to the coordinator, and continues
coordinator on rank 0: orders ready requests (`coordinator`, `negotiation`)
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ronde.comm.process_group import Comm
from ronde.comm.rendezvous import connect_store, join
from ronde.comm.single_rank import SingleRank
from ronde.comm.topology import RankPosition
from ronde.compat import collectives
from ronde.compat.coordinator import Coordinator, CoordinatorConnection, Lost, connect
from ronde.compat.negotiation import WORLD, Negotiation, Response, TensorRequest
from ronde.compat.place import JobPlace
from ronde.errors import LaunchError, PeerLost

__all__ = ["Engine", "HorovodInternalError", "Options", "SubmittedTensor"]

# Counts starts in this process: every start uses the store under a number of its own. Generations of an
# elastic job count from 1.
_starts = itertools.count()
# Seconds for which ranks of an elastic job wait for a rank that has joined: it may have died since.
_COMES_S = 60.0
# Held requests are sent together once they have so many bytes. A message costs a rank 0.1 ms; larger batches
# would leave less of backward to overlap with.
_HELD_BYTES = 4 << 20


class HorovodInternalError(RuntimeError):
    """Raised when a collective failed. The message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options from the launcher or the environment.

    Attributes:
        fusion_bytes: maximum bytes of all-reduces that are fused.
        starts_within, stalls_after, ends_after: seconds, the same as in `Coordinator`.
    """

    fusion_bytes: int = 64 << 20
    starts_within: float = 1800.0
    stalls_after: float = 60.0
    ends_after: float = 0.0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Options:
        """Read Horovod's environment variables."""
        checked = environment.get("HOROVOD_STALL_CHECK_DISABLE", "0") in ("", "0")
        return cls(
            fusion_bytes=int(environment.get("HOROVOD_FUSION_THRESHOLD") or cls().fusion_bytes),
            starts_within=float(environment.get("HOROVOD_START_TIMEOUT") or cls().starts_within),
            stalls_after=float(environment.get("HOROVOD_STALL_CHECK_TIME_SECONDS") or 60) if checked else 0.0,
            ends_after=float(environment.get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS") or 0) if checked else 0.0,
        )


class SubmittedTensor:
    """A tensor that this rank has submitted.

    Attributes:
        output: buffer of the result, if it is in place or has the input's shape.
        engine: engine to which it was submitted; None before.
        result: value that `synchronize` returns.
    """

    __slots__ = ("_done", "engine", "error", "finish", "is_done", "output", "ready", "request", "result")

    def __init__(self, request: TensorRequest, output: torch.Tensor | None) -> None:
        self.request = request
        self.output = output
        self.result: Any = None
        self.error = ""
        self.finish: Callable[[Any], Any] | None = None
        self.engine: Engine | None = None
        self.ready: Any = None
        if output is not None and output.is_cuda:
            self.ready = torch.cuda.Event()
            self.ready.record()
        self.is_done = False
        self._done = threading.Lock()  # held until done; cheaper than an event
        self._done.acquire()

    def complete(self, result: Any = None, error: str = "") -> None:
        self.result, self.error, self.is_done = result, error, True
        self._done.release()

    def wait(self) -> Any:
        """Wait for the result, and return it.

        Raises:
            HorovodInternalError: the collective failed, on all ranks.
        """
        if not self.is_done and self.engine is not None:
            self.engine.help()
        if not self.is_done:
            with self._done:
                pass
        self.let_go()
        if self.error:
            raise HorovodInternalError(self.error)
        if self.finish is not None:
            self.result, self.finish = self.finish(self.result), None
        return self.result

    def let_go(self) -> None:
        """Release the name, so that it may be submitted again."""
        if self.engine is not None:
            self.engine.free_name(self)


class Engine:
    """The engine of this process, made by `init` and ended by `shutdown`. Both are collective.

    Args:
        sets: members of the initial process sets.

    Attributes:
        sets: members of each process set, by its number.
        listener: function called after each exchange with kind, names, begin and end in seconds.
        failure: reason why the exchange has ended; "" while it runs.

    Raises:
        LaunchError: ranks could not connect.
    """

    def __init__(self, place: JobPlace, options: Options, sets: Sequence[Sequence[int]] = ()) -> None:
        self.place = place
        self.options = options
        self.sets: dict[int, tuple[int, ...]] = {WORLD: tuple(range(place.size))}
        self.sets |= {number: tuple(members) for number, members in enumerate(sets, 1)}
        self.listener: Callable[[str, Sequence[str], float, float], None] | None = None
        self.failure = ""
        self._lock = threading.Lock()
        self._pending: dict[tuple[int, str], SubmittedTensor] = {}
        self._awaited: dict[tuple[int, str], SubmittedTensor] = {}  # until its caller has waited for it
        self._held: list[SubmittedTensor] = []
        self._held_bytes = 0
        self._counts: dict[str, int] = {}
        self._comms: dict[tuple[int, str], Comm] = {}
        self._coordinator: Coordinator | None = None
        self._link: CoordinatorConnection[Response] | None = None
        self._number = place.generation or next(_starts)
        self._negotiation = Negotiation(place.size, options.fusion_bytes, sets)
        self._stream: Any = None
        # A file store deletes its file once as many clients have left as there are ranks: it is kept until
        # the end, and each start has its own file.
        by_file = place.store.startswith("file://")
        self._address = f"{place.store}.{self._number}" if by_file else place.store
        self._store: Any = None
        if place.size > 1:
            self._meet()

    @property
    def is_alone(self) -> bool:
        return self.place.size == 1

    def name_for(self, kind: str, name: str | None) -> str:
        """Return the given name, or the next automatic one of this kind."""
        if name:
            return f"{kind}.{name}"
        with self._lock:
            number = self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{kind}.noname.{number}"

    def counts(self) -> tuple[tuple[str, int], ...]:
        """Return the number of automatic names so far, by kind."""
        return tuple(self._counts.items())

    def submit(self, *entries: SubmittedTensor, held: bool = False) -> None:
        """Submit tensors for exchange; several in one call cost one message.

        Args:
            held: whether they may wait for others, until `release`, any other `submit` or any wait.

        Raises:
            HorovodInternalError: the exchange has ended.
            ValueError: a tensor of this name is pending, or its handle was not waited for.
        """
        with self._lock:
            if self.failure:
                raise HorovodInternalError(self.failure)
            for entry in entries:
                key = entry.request.process_set, entry.request.name
                if key in self._awaited or key in self._pending:
                    raise ValueError(
                        f"a tensor named {entry.request.name!r} was submitted before, and its handle has not "
                        "been waited for; call synchronize() on it first, or give another name [R714]"
                    )
            for entry in entries:
                key = entry.request.process_set, entry.request.name
                self._pending[key] = self._awaited[key] = entry
                entry.engine = self
            self._held += entries
            self._held_bytes += sum(entry.request.nbytes for entry in entries)
            if held and self._held_bytes < _HELD_BYTES:
                return
            sent = self._take_held()
        self._send(sent)

    def release(self) -> None:
        """Send held requests."""
        with self._lock:
            sent = self._take_held()
        if sent:
            self._send(sent)

    def free_name(self, entry: SubmittedTensor) -> None:
        """Release an entry's name, unless a later entry uses it."""
        key = entry.request.process_set, entry.request.name
        with self._lock:
            if self._awaited.get(key) is entry:
                del self._awaited[key]

    def _take_held(self) -> list[SubmittedTensor]:
        """Return held requests and clear them; called with the lock held."""
        held, self._held, self._held_bytes = self._held, [], 0
        return held

    def help(self) -> None:
        """Send held requests, and execute ready responses in this thread if possible."""
        if self._held:
            self.release()
        coordinator = self._coordinator  # `shutdown` in another thread clears it
        if coordinator is not None:
            coordinator.help()

    def _send(self, entries: Sequence[SubmittedTensor]) -> None:
        coordinator, link = self._coordinator, self._link
        if coordinator is not None:
            coordinator.submit([entry.request for entry in entries])
            return
        if self.is_alone:
            for entry in entries:
                self._negotiation.add(0, entry.request)
            while (response := self._negotiation.take()) is not None:
                self._carry_out(response)
            return
        if link is None:
            return  # `shutdown` fails what is pending
        try:
            link.send(*(entry.request for entry in entries))
        except Lost:
            self._fail("rank 0, which coordinates, has ended [R712]")

    def shutdown(self) -> None:
        """Leave, and wait until all ranks have left; a second call does nothing."""
        self.release()
        link, self._link = self._link, None
        coordinator, self._coordinator = self._coordinator, None
        leaves = TensorRequest(name="close", kind="close")
        if coordinator is not None:
            coordinator.submit([leaves])
            coordinator.join()
        if link is not None:
            with contextlib.suppress(Lost):
                link.send(leaves)
            self._executor.join()
            link.close()
        for comm in self._comms.values():
            comm.close()
        self._comms.clear()
        self._store = None
        self._fail("Horovod has been shut down [R712]")

    def _meet(self) -> None:
        place, within = self.place, self.options.starts_within
        if place.is_elastic:
            within = min(within, _COMES_S)
        store: Any = connect_store(self._address, place.size, timedelta(seconds=within))
        store = self._store = dist.PrefixStore(f"compat/{self._number}", store)
        if place.rank == 0:
            token = os.urandom(16)
            host = "127.0.0.1" if place.local_size == place.size else place.address
            coordinator = Coordinator(
                self._negotiation, place.size, host, token, self._told, starts_within=within,
                stalls_after=self.options.stalls_after, ends_after=self.options.ends_after,
            )  # fmt: skip
            host, port = coordinator.address
            store.set("coordinator", token + f"{host}:{port}".encode())
            coordinator.start()
            self._comm(WORLD, "cpu")
            self._coordinator = coordinator
            return
        try:
            told: bytes = store.get("coordinator")
        except dist.DistStoreError:
            raise LaunchError(
                f"rank 0 has not called init() within {within:.0f} s; all must call it [R710]"
            ) from None
        host, _, port = told[16:].decode().rpartition(":")
        self._link = connect((host, int(port)), place.rank, told[:16], starts_within=within)
        self._comm(WORLD, "cpu")
        # Pass the link, as `shutdown` clears the attribute.
        self._executor = threading.Thread(
            target=self._execute, args=(self._link,), name="ronde executor", daemon=True
        )
        self._executor.start()

    def _comm(self, number: int, device: str) -> Comm:
        """Return the group of a process set. Its first use is collective over the members."""
        kind = "cuda" if device.startswith("cuda") else "cpu"
        found = self._comms.get((number, kind))
        if found is None and len(self.sets[number]) == 1:
            backend = SingleRank(on_cuda=kind == "cuda")
            found = self._comms[number, kind] = Comm(backend, rank=0, world_size=1, store=dist.HashStore())
        if found is None:
            place, members = self.place, self.sets[number]
            first = place.rank - place.local_rank
            here = [rank for rank in members if first <= rank < first + place.local_size]
            found = self._comms[number, kind] = join(
                self._address,
                name=f"compat/{self._number}/{number}/{kind}",
                place=RankPosition(
                    members.index(place.rank), len(members), here.index(place.rank), len(here)
                ),
                device=kind,
                timeout=timedelta(
                    seconds=min(place.timeout, _COMES_S) if place.is_elastic else place.timeout
                ),
                host="127.0.0.1" if place.local_size == place.size else place.address,
                algorithm="auto",
            )
            if place.is_elastic:
                found.backend.set_timeout(timedelta(seconds=place.timeout))
        return found

    def _execute(self, link: CoordinatorConnection[Response]) -> None:
        """Run the executor's thread, on all ranks but rank 0."""
        try:
            while not self.failure:
                for response in link.receive():
                    self._told(response)
                    if response.kind == "close":
                        return
        except Lost:
            self._fail("rank 0, which coordinates, has ended [R712]")
        except PeerLost as lost:
            self._fail(str(lost))

    def _told(self, response: Response) -> None:
        """Execute a response of the coordinator, or fail on its error."""
        if response.kind != "close":
            self._carry_out(response)
        elif response.error:
            self._fail(response.error)

    def _fail(self, why: str) -> None:
        with self._lock:
            self.failure = self.failure or why
            pending, self._pending = self._pending, {}
            self._take_held()
        for entry in pending.values():
            entry.complete(error=f"{entry.request.name!r} has failed: {why}")

    def _carry_out(self, response: Response) -> None:
        """Execute a response with its tensors, and wake their waiters."""
        with self._lock:
            keys = [(each.process_set, each.name) for each in response.requests]
            entries = [self._pending.pop(key, None) for key in keys]
        try:
            if response.error:
                raise HorovodInternalError(response.error)
            begun = time.perf_counter()
            with torch.no_grad():
                results = self._exchange(response, entries)
            if self.listener is not None:
                names = [each.name for each in response.requests]
                self.listener(response.kind, names, begun, time.perf_counter())
        except (Exception, PeerLost) as error:  # reported to the waiters, who would wait forever
            ended = isinstance(error, PeerLost)
            told = str(error) if response.error else f"{keys[0][1]!r} has failed: {error}"
            for entry in filter(None, entries):
                entry.complete(error=told)
            if ended:
                raise
            return
        for entry, result in zip(entries, results, strict=True):
            if entry is not None:
                entry.complete(result)

    def _exchange(self, response: Response, entries: Sequence[SubmittedTensor | None]) -> list[Any]:
        request = response.requests[0]
        if response.kind == "join":
            with self._lock:
                self._counts = dict(response.counts)
            return [response.last]
        if response.kind == "set":
            return [self._change_sets(request, response.process_set)]
        if response.kind == "barrier":
            return [None]
        device = entries[0].output.device if entries[0] and entries[0].output is not None else request.device
        comm = self._comm(request.process_set, str(device))
        given = [
            entry.output
            if entry is not None and entry.output is not None
            else collectives.zeros_for(each.dtype, each.shape, str(device))
            for entry, each in zip(entries, response.requests, strict=True)
        ]
        if not comm.on_cuda:
            return self._exchanged(comm, response, given)
        with self._on_device(entries):
            return self._exchanged(comm, response, given)

    def _exchanged(self, comm: Comm, response: Response, given: list[torch.Tensor]) -> list[Any]:
        request, tensor = response.requests[0], given[0]
        if response.kind == "allreduce":
            collectives.all_reduce(comm, given, request.operation, request.before, request.after)
            return list(given)
        if response.kind == "allgather":
            return [collectives.all_gather(comm, tensor, response.rows[0])]
        if response.kind == "broadcast":
            return [comm.broadcast(tensor, self.sets[request.process_set].index(request.root))]
        if response.kind == "alltoall":
            return [collectives.all_to_all(comm, tensor, response.splits)]
        scaled = request.operation, request.before, request.after
        return [collectives.reduce_scatter(comm, tensor, *scaled)]

    @contextlib.contextmanager
    def _on_device(self, entries: Sequence[SubmittedTensor | None]) -> Any:
        """Run CUDA work inside the `with` block after the script's earlier work. It uses its own stream."""
        device: Any = next((each.output.device for each in entries if each and each.output is not None), None)
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        with torch.cuda.stream(self._stream):
            for entry in filter(None, entries):
                if entry.ready is not None:
                    self._stream.wait_event(entry.ready)
            yield
        self._stream.synchronize()

    def _change_sets(self, request: TensorRequest, number: int) -> int:
        if request.members:
            self.sets[number] = request.members
        else:
            self.sets.pop(number, None)
            for key in [key for key in self._comms if key[0] == number]:
                self._comms.pop(key).close()
        return number
