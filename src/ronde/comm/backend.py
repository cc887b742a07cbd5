"""What carries a group's collectives: memory that the ranks of a host share, or torch's Gloo or NCCL."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ronde.comm.lane import Started
from ronde.comm.scattering import end_to_end, reduce_scatter_by_all_reduce
from ronde.comm.shared_memory import SharedMemory
from ronde.comm.sharing import share_by_messages
from ronde.patching.torch_internals import (
    DisableTorchDispatch,
    all_gather_single,
    all_to_all_single,
    count_dispatch_modes,
    set_grad_enabled,
)

__all__ = ["Backend", "SharedMemoryBackend", "Together", "TorchBackend", "unseen"]

# Bytes. Gloo sends a whole message both ways at once, and TCP's acknowledgements wait behind what is sent the
# other way. At 100 Mbit/s and 1 Gbit/s 6 MB take up to twice as long whole as in slices. Gloo's two threads
# have two slices on the way.
_SLICE = 512 << 10


class Backend(Protocol):
    """Collectives on flat contiguous tensors, called by all ranks in the same order.

    Each starts and returns a handle whose `wait()` returns when the tensor may be read, or None when
    that is so already.

    Attributes:
        name: as a user knows it.
        on_cuda: tensors must live on the CUDA device.
        blocks: a collective may wait for peers before it returns.
    """

    name: str
    on_cuda: bool
    blocks: bool

    def all_reduce(self, flat: torch.Tensor) -> Any:
        """Sum `flat` [n] over ranks in place."""
        ...

    def all_gather(self, out: torch.Tensor, flat: torch.Tensor) -> Any:
        """Put every rank's `flat` [n], of bytes, into `out` [ranks, n]."""
        ...

    def broadcast(self, flat: torch.Tensor, source: int) -> Any:
        """Put `flat` [n], of bytes, of rank `source` into every rank's."""
        ...

    def share(self, rank: int, parts: Sequence[Sequence[torch.Tensor]]) -> Any:
        """Complete tensors of bytes: rank r has written `parts[r]`, and `rank` is this one."""
        ...

    def reduce_scatter(self, rank: int, out: torch.Tensor, pieces: Sequence[Sequence[torch.Tensor]]) -> Any:
        """Put the sum over ranks of `pieces[rank]`, end to end, into `out` of rank `rank`, this one."""
        ...

    def all_to_all(
        self, outs: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor], longest: int = 0
    ) -> Any:
        """Send `pieces[r]`, of bytes, to rank r; put what rank r sends into `outs[r]`, which is as long.

        Args:
            longest: the same on all ranks, of which none sends a longer piece; 0: nobody knows.
        """
        ...

    def send(self, flat: torch.Tensor, to: int) -> Any:
        """Start to send `flat` [n], of bytes, to one rank; it may be written to at once."""
        ...

    def receive(self, flat: torch.Tensor, source: int) -> Any:
        """Start to receive into `flat` [n], of bytes, what one rank has sent, in the order of sending."""
        ...

    def set_timeout(self, timeout: timedelta) -> None:
        """How long a collective waits for a peer from now on."""
        ...

    def close(self) -> None:
        """Close connections and end threads."""
        ...


class TorchBackend:
    """A process group of torch's, Gloo or NCCL, that nobody else knows."""

    blocks = False

    def __init__(self, group: Any) -> None:
        self._group: Any = group
        self.on_cuda = "nccl" in type(group).__name__.lower()
        self.name = "NCCL" if self.on_cuda else "Gloo"

    def all_reduce(self, flat: torch.Tensor) -> Any:
        return self._group.allreduce([flat])

    def all_gather(self, out: torch.Tensor, flat: torch.Tensor) -> Any:
        if self.on_cuda or len(flat) <= _SLICE:
            return all_gather_single(self._group, out.view(-1), flat)
        rows = [row.split(_SLICE) for row in out.view(-1, len(flat)).unbind(0)]
        slices = zip(flat.split(_SLICE), zip(*rows, strict=True), strict=True)
        return Together([self._group.allgather([list(places)], [sent]) for sent, places in slices])

    def broadcast(self, flat: torch.Tensor, source: int) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank = source
        options.rootTensor = 0
        return self._group.broadcast([flat], options)

    def share(self, rank: int, parts: Sequence[Sequence[torch.Tensor]]) -> Any:
        return share_by_messages(self, rank, parts)

    def reduce_scatter(self, rank: int, out: torch.Tensor, pieces: Sequence[Sequence[torch.Tensor]]) -> Any:
        if self.on_cuda:
            return self._group.reduce_scatter([out], [[end_to_end(piece, out) for piece in pieces]])
        return reduce_scatter_by_all_reduce(self, rank, out, pieces)

    def all_to_all(
        self, outs: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor], longest: int = 0
    ) -> Any:
        if self.on_cuda or longest <= _SLICE:
            return self._exchange(outs, pieces)
        begins = range(0, longest, _SLICE)
        return Together([self._exchange(_sliced(outs, at), _sliced(pieces, at)) for at in begins])

    def _exchange(self, outs: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor]) -> _Split:
        out = pieces[0].new_empty(sum(map(len, outs)))
        sizes = [len(each) for each in outs], [len(each) for each in pieces]
        work = all_to_all_single(self._group, out, torch.cat(list(pieces)), *sizes)
        return _Split(work, out, outs)

    def send(self, flat: torch.Tensor, to: int) -> Any:
        return _Sending(self._group, flat.clone(), to)

    def receive(self, flat: torch.Tensor, source: int) -> Any:
        return self._group.recv([flat], source, 0)

    def set_timeout(self, timeout: timedelta) -> None:
        self._group.set_timeout(timeout)

    def close(self) -> None:
        """End the backend's threads as well.

        Gloo's `shutdown` leaves its threads running, and only the group's destruction joins them. A thread
        that lets go of a tensor while the interpreter ends would abort the process.
        """
        group, self._group = self._group, None
        if group is not None:
            group.shutdown()


class _Sending:
    """A message under way, which whoever sends it may go on to write to."""

    def __init__(self, group: Any, held: torch.Tensor, to: int) -> None:
        self._held = held
        self._work = group.send([held], to, 0)

    def wait(self) -> None:
        self._work.wait()


class Together:
    """Several works are one."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


class _Split:
    """What came as one tensor is several."""

    def __init__(self, work: Any, out: torch.Tensor, outs: Sequence[torch.Tensor]) -> None:
        self._work, self._out, self._outs = work, out, outs

    @torch.no_grad()
    def wait(self) -> None:
        self._work.wait()
        for part, out in zip(self._out.split([len(each) for each in self._outs]), self._outs, strict=True):
            out.copy_(part)


def _sliced(flats: Sequence[torch.Tensor], begin: int) -> list[torch.Tensor]:
    return [flat[begin : begin + _SLICE] for flat in flats]


class unseen:
    """As a library in C++ does things: neither autograd nor a dispatch mode of the script sees them.

    A class, because a small collective enters it twice; a generator takes as long as the exchange, and the
    guard against modes does too.

    Args:
        flat: the only tensor from outside; without it the guard is always there.
    """

    __slots__ = ("_guard", "_with_grad")

    def __init__(self, flat: torch.Tensor | None = None) -> None:
        seen = type(flat) is not torch.Tensor or count_dispatch_modes()
        self._guard: Any = DisableTorchDispatch() if seen else None

    def __enter__(self) -> None:
        self._with_grad = torch.is_grad_enabled()
        if self._with_grad:
            set_grad_enabled(False)
        if self._guard is not None:
            self._guard.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._guard is not None:
            self._guard.__exit__(*error)
        if self._with_grad:
            set_grad_enabled(True)


def _as_bytes_travel(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def travels(*args: Any) -> None:
        with unseen():
            method(*args)

    return travels


class _Unseen:
    """A handle whose waiting neither autograd nor a mode sees."""

    def __init__(self, started: Started) -> None:
        self._started = started

    def wait(self) -> None:
        with unseen():
            self._started.wait()


class SharedMemoryBackend:
    """Ranks of one host."""

    name = "shared memory"
    on_cuda = False
    blocks = True

    def __init__(self, shared: SharedMemory) -> None:
        self.shared = shared

    def all_reduce(self, flat: torch.Tensor) -> Any:
        with unseen():
            started = self.shared.start_all_reduce(flat)
        return None if started is None else _Unseen(started)

    def all_reduce_now(self, flat: torch.Tensor) -> None:
        """As `all_reduce`; on return the tensor may be read."""
        with unseen(flat):
            self.shared.all_reduce(flat)

    def all_gather(self, out: torch.Tensor, flat: torch.Tensor) -> Any:
        with unseen():
            started = self.shared.start_all_gather(out, flat)
        return None if started is None else _Unseen(started)

    @_as_bytes_travel
    def broadcast(self, flat: torch.Tensor, source: int) -> Any:
        self.shared.broadcast(flat, source)

    @_as_bytes_travel
    def share(self, rank: int, parts: Sequence[Sequence[torch.Tensor]]) -> None:
        self.shared.complete(parts)

    @_as_bytes_travel
    def reduce_scatter(self, rank: int, out: torch.Tensor, pieces: Sequence[Sequence[torch.Tensor]]) -> None:
        self.shared.reduce_scatter_lists(out, pieces)

    @_as_bytes_travel
    def all_to_all(
        self, outs: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor], longest: int = 0
    ) -> None:
        self.shared.all_to_all(outs, pieces)

    @_as_bytes_travel
    def send(self, flat: torch.Tensor, to: int) -> None:
        self.shared.mailbox.send(flat, to)

    @_as_bytes_travel
    def receive(self, flat: torch.Tensor, source: int) -> None:
        mailbox = self.shared.mailbox
        mailbox.wait(mailbox.receive(flat, source))

    def set_timeout(self, timeout: timedelta) -> None:
        self.shared.set_timeout(timeout)

    def close(self) -> None:
        self.shared.close()
