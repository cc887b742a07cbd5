"""The ranks' private process group.

It is private, because libraries change their behaviour when `torch.distributed` is initialized (torchmetrics
doubles its counts): the group is made from a store directly and never registered.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from time import perf_counter_ns  # bound here: the module's own is replaced for scripts
from typing import Any

import torch
import torch.distributed as dist

from ronde.comm.as_bytes import as_bytes
from ronde.comm.backend import Backend, SharedMemoryBackend, Together
from ronde.comm.buffer import Buffer, TorchBuffer
from ronde.comm.by_device import ByDevice
from ronde.comm.lockstep_check import LockstepCheck
from ronde.comm.once_per_host import OncePerHost
from ronde.comm.pending import Arriving, Pending
from ronde.comm.shared_buffer import allocate_shared
from ronde.comm.topology import Topology
from ronde.comm.wire_format import WIDER, copy_back, divide, travels_as_it_is
from ronde.errors import LaunchError, PeerLost, UsageError

__all__ = ["Comm"]

# Time for which a rank with a debugger open may keep the others waiting: its user can end the run.
_DEBUGGER_TIMEOUT = timedelta(days=7)
_LOOK_EVERY = 0.02


class Comm:
    """Collectives among all ranks on one private process group.

    Every method is called by all ranks in the same order. Tensors lie on the group's device or in
    host memory, the same on all ranks; one rank alone has them anywhere.

    Raises:
        PeerLost: a peer died or did not arrive within the time limit.
        DivergedError: a peer on this host calls another operation. Raised with a `check` only.
        UsageError: one rank alone is in a debugger.

    Args:
        backend: the transport of bytes.
        check: comparison of the operations of this host's ranks; None for no comparison.
        topology: the ranks of each host; None on one host.

    Attributes:
        control_device: the device of control messages, host memory: no accelerator waits for them.
        waited_ns: nanoseconds that this rank was blocked until other ranks and their bytes had arrived.
        sent_bytes: bytes that this rank has given to collectives, in the tensors' own dtypes.
        collectives: the number of collectives.
        listener: function called after each collective (with its name, begin and end in nanoseconds, bytes),
            and after each wait of this rank ("wait", with -1 bytes); None for no calls.
        before: function called before each collective, or None.
        alone: whether only this rank is in a debugger: a collective would wait for ever.
        algorithm: the all-reduce algorithm and its reason, in words.
        note: a remark for the user on the transport, or None.
    """

    control_device = torch.device("cpu")

    def __init__(
        self,
        backend: Backend,
        *,
        rank: int,
        world_size: int,
        store: dist.Store,
        check: LockstepCheck | None = None,
        topology: Topology | None = None,
        algorithm: str = "",
        note: str | None = None,
    ) -> None:
        self._backend: Backend | None = backend
        self.on_cuda = backend.on_cuda
        self.check = check
        self.rank = rank
        self.world_size = world_size
        self.store = store
        self.waited_ns = 0
        self.sent_bytes = 0
        self.collectives = 0
        self.listener: Callable[[str, int, int, int], object] | None = None
        self.alone = False
        self.before: Callable[[], None] | None = None
        self.topology = topology
        self.algorithm = algorithm
        self.note = note
        self._answers = 0

    def at_one_line(self) -> AbstractContextManager[None]:
        """Let ranks enter collectives from different lines, below the script's current one."""
        return nullcontext() if self.check is None else self.check.at_one_line()

    @property
    def backend(self) -> Backend:
        """The transport of bytes.

        Raises:
            PeerLost: the group is closed.
        """
        if self._backend is None:
            raise PeerLost("the process group is closed [R198]")
        return self._backend

    def all_reduce_async(self, tensor: torch.Tensor) -> Pending:
        """Start summing `tensor` over ranks in place; its contents are undefined until `wait`."""
        wider = WIDER.get(tensor.dtype)
        sent = tensor if wider is None else tensor.to(wider)
        if sent.is_complex():
            sent = torch.view_as_real(sent)
        if not sent.is_contiguous():
            contiguous = sent.contiguous()
            pending = self._start("all_reduce", tensor, lambda: self.backend.all_reduce(contiguous.view(-1)))
            return pending.then(lambda: copy_back(tensor, contiguous))
        pending = self._start("all_reduce", tensor, lambda: self.backend.all_reduce(sent.view(-1)))
        return pending if wider is None else pending.then(lambda: copy_back(tensor, sent))

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum `tensor` over ranks in place and return it."""
        backend = self.backend
        if isinstance(backend, SharedMemoryBackend) and travels_as_it_is(tensor):
            # In one call: a separate start and wait take longer than a small exchange itself.
            flat = tensor if tensor.dim() == 1 else tensor.view(-1)
            if self.before is not None:
                self.before()
            number = self.announce("all_reduce", tensor)
            begun = perf_counter_ns()
            self.block(lambda: backend.all_reduce_now(flat), number)
            self.tell("all_reduce", begun, tensor.nbytes)
        else:
            self.all_reduce_async(tensor).wait()
        return tensor

    def average_async(self, flat: torch.Tensor) -> Pending:
        """Start averaging a flat tensor over ranks in place.

        Its contents are undefined until `wait`. The library of a device may divide in the pass that sums.
        """
        backend = self.backend
        if isinstance(backend, ByDevice) and backend.averages(flat):
            sent = torch.view_as_real(flat).view(-1) if flat.is_complex() else flat
            return self._start("all_reduce", flat, lambda: backend.average(sent))
        return self.all_reduce_async(flat).then(lambda: divide(flat, self.world_size))

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Stack equal-shaped tensors of all ranks: shape [...] becomes [world_size, ...]."""
        out, pending = self.all_gather_async(tensor)
        pending.wait()
        return out

    def all_gather_async(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Pending]:
        """Start `all_gather`; the result may be read after `wait`."""
        sent = tensor.contiguous()
        out = torch.empty((self.world_size, *sent.shape), dtype=sent.dtype, device=sent.device)
        if not sent.numel():
            return out, Pending(self, None)
        # As bytes: every dtype travels, also dtypes unknown to the backend.
        received = out.view(self.world_size, -1).view(torch.uint8)
        mine = as_bytes(sent)
        return out, self._start("all_gather", tensor, lambda: self.backend.all_gather(received, mine))

    def allocate(
        self, shapes: Sequence[tuple[int, torch.dtype]], devices: Sequence[torch.device]
    ) -> list[Buffer]:
        """Allocate buffers of these sizes, to be averaged over ranks repeatedly."""
        on_cpu = all(device.type == "cpu" for device in devices)
        if isinstance(self.backend, SharedMemoryBackend) and on_cpu:
            self.mark("memory for gradients")
            try:
                return allocate_shared(shapes, self)
            except LaunchError as error:
                self.note = f"{error}; gradients take one more copy [R321]"
        return [
            TorchBuffer(numel, dtype, device, self)
            for (numel, dtype), device in zip(shapes, devices, strict=True)
        ]

    @property
    def shares_host(self) -> bool:
        """True when all ranks are on one host and share memory."""
        return isinstance(self.backend, SharedMemoryBackend)

    def share_once(self, nbytes: int, own: Sequence[tuple[int, int]]) -> OncePerHost | None:
        """Map memory of `nbytes` once for all ranks; None, on all, if impossible.

        Args:
            own: first and last byte of each range that this rank keeps up to date, and allocates.
        """
        backend = self.backend
        if not isinstance(backend, SharedMemoryBackend):
            return None
        self.mark("memory for all ranks")
        return backend.shared.share_once(nbytes, own)

    def share(self, parts: Sequence[Sequence[torch.Tensor]]) -> None:
        """All-gather tensors in place: rank r has written the flat `parts[r]`.

        Args:
            parts: flat tensors of each rank; counts, sizes and dtypes are the same on all ranks.
        """
        self.share_async(parts).wait()

    @torch.no_grad()
    def share_async(self, parts: Sequence[Sequence[torch.Tensor]]) -> Pending:
        """Start `share`. Until `wait` no part may be written, and none of another rank read."""
        spread = [[part.view(torch.uint8) for part in each if part.numel()] for each in parts]
        first = next((part for each in spread for part in each), None)
        if first is None:
            return Pending(self, None)
        own = sum(part.nbytes for part in spread[self.rank])
        return self._start("share", first, lambda: self.backend.share(self.rank, spread), own)

    def reduce_scatter_async(self, out: torch.Tensor, pieces: Sequence[Sequence[torch.Tensor]]) -> Pending:
        """Start to sum `pieces[rank]` over ranks into `out`, readable after `wait`.

        Args:
            out: flat, as long as this rank's piece.
            pieces: flat tensors of one dtype for each rank, taken end to end; lengths may differ between
                pieces, but not between ranks.
        """
        longest = max((part for piece in pieces for part in piece), key=torch.Tensor.numel, default=out)
        if not longest.numel():
            return Pending(self, None)
        nbytes = sum(part.nbytes for piece in pieces for part in piece)
        return self._start(
            "reduce_scatter", longest, lambda: self.backend.reduce_scatter(self.rank, out, pieces), nbytes
        )

    def all_gather_object(self, obj: Any) -> list[Any]:
        """Return every rank's picklable object, in rank order."""
        payload = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
        size = torch.tensor([payload.numel()], device=self.control_device)
        received = self.all_gather_uneven(payload, self.all_gather(size).view(-1).tolist())
        return [pickle.loads(each.numpy().tobytes()) for each in received]

    def all_gather_uneven(self, tensor: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        """Gather tensors of `sizes[rank]` rows on each rank; other dimensions are equal."""
        if len(set(sizes)) == 1:
            return list(self.all_gather(tensor).unbind(0))
        padded = tensor.new_zeros((max(sizes), *tensor.shape[1:]))
        padded[: tensor.shape[0]] = tensor
        return [part[:size] for part, size in zip(self.all_gather(padded), sizes, strict=True)]

    def all_to_all(self, pieces: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """Send `pieces[r]` to rank r, and return the received tensors in rank order.

        Args:
            pieces: contiguous tensors of one dtype, and of one shape but for their first dimension.
            sizes: the first dimension of the tensor from each rank.
        """
        outs, pending = self.all_to_all_async(pieces, sizes)
        pending.wait()
        return outs

    def all_to_all_async(
        self, pieces: Sequence[torch.Tensor], sizes: Sequence[int], longest: int = 0
    ) -> tuple[list[torch.Tensor], Pending]:
        """Start `all_to_all`; the result may be read after `wait`.

        Args:
            longest: the largest first dimension of a piece from any rank to any, itself included, where all
                ranks know it. Long pieces are then sent in slices, so that a link carries both directions at
                once.
        """
        assert not longest or longest >= max(*map(len, pieces), *sizes), "what is longer would be lost"
        outs = [pieces[0].new_empty((size, *pieces[0].shape[1:])) for size in sizes]
        sent = [as_bytes(piece) for piece in pieces]
        received = [as_bytes(out) for out in outs]
        # Sizes differ between ranks, so the check compares an empty tensor, equal on all.
        told = pieces[0][:0]
        nbytes = sum(map(len, sent))
        most = longest * told.element_size() * told.shape[1:].numel()
        launch = lambda: self.backend.all_to_all(received, sent, most)  # noqa: E731 - it is started below
        return outs, self._start("all_to_all", told, launch, nbytes)

    def swap_async(self, flat: torch.Tensor, peers: Collection[int]) -> tuple[list[torch.Tensor], Pending]:
        """Start to exchange `flat` [n] with some ranks.

        Args:
            flat: tensor of the same length on all ranks.
            peers: the partners; each of them names this rank as well.

        Returns:
            the tensors from each rank, [n], or [0] from others; and the pending collective.
        """
        ranks = range(self.world_size)
        pieces = [flat if rank in peers else flat[:0] for rank in ranks]
        return self.all_to_all_async(pieces, [len(piece) for piece in pieces], len(flat))

    def pass_on(self, flat: torch.Tensor, count: int) -> tuple[torch.Tensor, Pending]:
        """Start to send `flat` [n] to the next rank, and receive from the previous.

        On the CPU `flat` may be overwritten at once, on CUDA after `wait`.

        Returns:
            the received tensor, [count], to be read after `wait`; and the pending collective.
        """
        after, before = ((self.rank + each) % self.world_size for each in (1, -1))
        backend = self.backend
        # Single messages of a device's library, all sent before any is received, could wait for ever.
        if flat.device.type != "cpu":
            pieces = [flat if rank == after else flat[:0] for rank in range(self.world_size)]
            sizes = [count if rank == before else 0 for rank in range(self.world_size)]
            outs, pending = self.all_to_all_async(pieces, sizes)
            return outs[before], pending
        out = flat.new_empty(count)
        number = self.announce("pass_on", flat[:0], flat.nbytes)
        sent, received = as_bytes(flat), as_bytes(out)
        started = ("pass_on", perf_counter_ns(), flat.nbytes) if self.listener is not None else None
        try:
            sending = backend.send(sent, after)
            if backend.blocks:
                work: Any = Arriving(lambda: backend.receive(received, before))
            else:
                works = backend.receive(received, before), sending
                work = Together([each for each in works if each is not None])
        except RuntimeError as error:
            raise self._lost(error) from error
        return out, Pending(self, work, number, started=started)

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Copy `tensor` of rank `source` into every rank's `tensor`; return it."""
        sent = tensor.detach().contiguous()
        flat = as_bytes(sent)
        if flat.numel():
            self._start("broadcast", tensor, lambda: self.backend.broadcast(flat, source)).wait()
        if sent.data_ptr() != tensor.data_ptr():
            copy_back(tensor, sent)
        return tensor

    def send(self, tensor: torch.Tensor, to: int) -> Pending:
        """Start to send a contiguous tensor to one rank, which receives in order.

        The tensor may be overwritten at once. The result must be kept until the message has gone.
        """
        sent = as_bytes(tensor.detach())
        self.collectives += 1
        self.sent_bytes += sent.numel()
        try:
            return Pending(self, self.backend.send(sent, to))
        except RuntimeError as error:
            raise self._lost(error) from error

    def receive(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """Receive a message from one rank into a contiguous tensor; return it."""
        flat = as_bytes(tensor)

        def arrive() -> None:
            work = self.backend.receive(flat, source)
            if work is not None:
                work.wait()

        self.block(arrive)
        return tensor

    def broadcast_object(self, obj: Any, source: int = 0) -> Any:
        """Return rank `source`'s picklable `obj` on every rank."""
        device = self.control_device
        payload = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
        size = self.broadcast(torch.tensor([payload.numel()], device=device), source)
        if self.rank != source:
            payload = torch.empty(int(size), dtype=torch.uint8, device=device)
        return pickle.loads(self.broadcast(payload, source).numpy().tobytes())

    def answer_of_main(self, ask: Callable[[], Any]) -> Any:
        """Return rank 0's `ask()` on every rank; others wait without time limit."""
        self._answers += 1
        key = f"answer/{self._answers}"
        if self.rank == 0:
            answer = ask()
            store: Any = self.store  # takes bytes, which its stub does not declare
            store.set(key, pickle.dumps(answer))
            return answer
        while not self.store.check([key]):
            time.sleep(_LOOK_EVERY)
        return pickle.loads(self.store.get(key))

    def be_patient(self) -> None:
        """Raise the time limit of collectives to that of a debugger session."""
        self.backend.set_timeout(_DEBUGGER_TIMEOUT)

    def votes(self, flags: Sequence[bool]) -> list[int]:
        """Return, for each flag, the number of ranks that set it."""
        if not flags:
            return []
        votes = torch.tensor(flags, dtype=torch.int32, device=self.control_device)
        return self.all_reduce(votes).tolist()

    def failures(self, failed: bool) -> int:
        """Return the number of failed ranks. Ranks may call this from different lines of the script."""
        check = self.check
        if check is None:
            return self.votes([failed])[0]
        with check.anywhere("any line"):
            return self.votes([failed])[0]

    def barrier(self) -> None:
        """Return when every rank has arrived."""
        self.all_reduce(torch.zeros(1, device=self.control_device))

    def close(self) -> None:
        """Close the connections and end the backend's threads; a second call does nothing."""
        backend, self._backend = self._backend, None
        check, self.check = self.check, None
        if check is not None:
            check.close()
        if backend is not None:
            backend.close()

    def mark(self, what: str) -> None:
        """Record an operation without messages, so that a diverged rank is found."""
        if self.check is not None:
            self.check.mark(what)

    def announce(self, operation: str, tensor: torch.Tensor, nbytes: int | None = None) -> int:
        """Compare the next operation with peers; return the number to wait under.

        Args:
            tensor: the tensor whose dtype and shape are compared with peers.
            nbytes: bytes that this rank gives to the collective; None for those of the tensor.
        """
        if self.alone:
            raise UsageError(
                "this needs every rank, but only rank 0 is in the debugger; compute it in a line of the "
                "script before the breakpoint, or step over a line that does [R384]"
            )
        self.collectives += 1
        self.sent_bytes += tensor.nbytes if nbytes is None else nbytes
        if self.check is None:
            return 0
        return self.check.collective(operation, tensor)

    def tell(self, operation: str, begun: int, nbytes: int) -> None:
        """Report a complete collective, started at `begun`, to the listener."""
        if self.listener is not None:
            self.listener(operation, begun, perf_counter_ns(), nbytes)

    def _start(
        self, operation: str, tensor: torch.Tensor, launch: Callable[[], Any], nbytes: int | None = None
    ) -> Pending:
        if self.before is not None:
            self.before()
        number = self.announce(operation, tensor, nbytes)
        started = None
        if self.listener is not None:
            started = operation, perf_counter_ns(), tensor.nbytes if nbytes is None else nbytes
        if not self.backend.blocks:
            try:
                return Pending(self, launch(), number, started=started)
            except RuntimeError as error:
                raise self._lost(error) from error
        return Pending(self, self.block(launch, number), number, started=started)

    def block(self, work: Callable[[], Any], number: int = 0) -> Any:
        """Run work that waits for peers, and count its time as waiting."""
        check = self.check
        begun = perf_counter_ns()
        try:
            if check is None:
                return work()
            check.waits(number)
            result = work()
            check.goes_on()
            return result
        except (RuntimeError, PeerLost) as error:  # the board keeps the place where this rank waited
            raise self._lost(error) from error
        finally:
            ended = perf_counter_ns()
            self.waited_ns += ended - begun
            if self.listener is not None:
                self.listener("wait", begun, ended, -1)

    def _lost(self, error: BaseException) -> PeerLost:
        """Return the error behind a failed collective: a diverged rank, or a lost one."""
        diverged = self.check.explain() if self.check is not None else None
        if diverged is not None:
            return diverged
        if isinstance(error, PeerLost):
            return error
        return PeerLost(self.topology.lost(str(error), self.rank) if self.topology else str(error))
