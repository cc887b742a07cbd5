"""Backends of a group's collectives: shared memory within a host, torch's Gloo, or NCCL."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ronde.comm.all_gather import share_by_messages, share_in_one
from ronde.comm.lane import PendingCollective
from ronde.comm.reduce_scatter import end_to_end, reduce_scatter_by_all_reduce
from ronde.comm.shared_memory import SharedMemory
from ronde.patching.torch_internals import (
    DisableTorchDispatch,
    all_gather_single,
    all_to_all_single,
    count_dispatch_modes,
    reduce_scatter_single,
    set_grad_enabled,
)

__all__ = ["Backend", "SharedMemoryBackend", "Together", "TorchBackend", "unseen"]

# Bytes. Gloo sends a whole message both ways at once, and TCP's acknowledgements wait for the data that is
# sent in their direction. At 100 Mbit/s and 1 Gbit/s 6 MB take up to twice as long whole as in slices. Gloo's
# two threads have two slices on the way.
_SLICE = 512 << 10


class Backend(Protocol):
    """Collectives on flat contiguous tensors, called by all ranks in the same order.

    Each starts and returns a handle whose `wait()` returns when the tensor may be read, or None when it may
    be read already.

    Attributes:
        name: the name shown to users.
        on_cuda: whether tensors must live on the CUDA device.
        blocks: whether a collective may wait for peers before it returns.
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
        """All-gather tensors of bytes in place: rank r has written `parts[r]`. `rank` is this one."""
        ...

    def reduce_scatter(self, rank: int, out: torch.Tensor, pieces: Sequence[Sequence[torch.Tensor]]) -> Any:
        """Sum `pieces[rank]`, end to end, over ranks into `out`, on rank `rank`."""
        ...

    def all_to_all(
        self, outs: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor], longest: int = 0
    ) -> Any:
        """Send `pieces[r]`, of bytes, to rank r, and receive from it into `outs[r]`.

        Both sides have the same length.

        Args:
            longest: upper bound of any rank's pieces in bytes, the same on all ranks; 0 if unknown.
        """
        ...

    def send(self, flat: torch.Tensor, to: int) -> Any:
        """Start to send `flat` [n], of bytes, to one rank. The caller may overwrite `flat` at once."""
        ...

    def receive(self, flat: torch.Tensor, source: int) -> Any:
        """Start to receive `flat` [n], of bytes, from one rank, in sending order."""
        ...

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time that a collective waits for a peer."""
        ...

    def close(self) -> None:
        """Close connections and end threads."""
        ...


class TorchBackend:
    """A private process group of torch's.

    Args:
        group: the process group.
        library: its library; every one but Gloo takes tensors on its accelerator only.
    """

    blocks = False

    def __init__(self, group: Any, library: str = "Gloo") -> None:
        self._group: Any = group
        self.on_cuda = library != "Gloo"
        self.name = library

    def all_reduce(self, flat: torch.Tensor) -> Any:
        return self._group.allreduce([flat])

    @property
    def averages(self) -> bool:
        """Tell whether `average` can be called, which only NCCL can do."""
        return self.name == "NCCL"

    def average(self, flat: torch.Tensor) -> Any:
        """Average `flat` [n] over ranks in place."""
        options: Any = dist.AllreduceOptions()  # takes an operation, which its stub does not declare
        options.reduceOp = dist.ReduceOp.AVG
        return self._group.allreduce([flat], options)

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
        return (share_in_one if self.on_cuda else share_by_messages)(self, rank, parts)

    def reduce_scatter(self, rank: int, out: torch.Tensor, pieces: Sequence[Sequence[torch.Tensor]]) -> Any:
        if self.on_cuda:
            if len({sum(part.numel() for part in piece) for piece in pieces}) == 1:
                flat = end_to_end([part for piece in pieces for part in piece], out)
                return reduce_scatter_single(self._group, out, flat)
            return self._group.reduce_scatter([out], [[end_to_end(piece, out) for piece in pieces]])
        return reduce_scatter_by_all_reduce(self, rank, out, pieces)

    def all_to_all(
        self, outs: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor], longest: int = 0
    ) -> Any:
        if self.on_cuda or longest <= _SLICE:
            return self._exchange(outs, pieces)
        begins = range(0, longest, _SLICE)
        return Together([self._exchange(_sliced(outs, at), _sliced(pieces, at)) for at in begins])

    def _exchange(self, outs: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor]) -> _SplitWork:
        out = pieces[0].new_empty(sum(map(len, outs)))
        sizes = [len(each) for each in outs], [len(each) for each in pieces]
        work = all_to_all_single(self._group, out, torch.cat(list(pieces)), *sizes)
        return _SplitWork(work, out, outs)

    def send(self, flat: torch.Tensor, to: int) -> Any:
        return _Sending(self._group, flat.clone(), to)

    def receive(self, flat: torch.Tensor, source: int) -> Any:
        return self._group.recv([flat], source, 0)

    def set_timeout(self, timeout: timedelta) -> None:
        self._group.set_timeout(timeout)

    def close(self) -> None:
        """Close the group, and end the backend's threads.

        Gloo's `shutdown` leaves its threads running, and only the group's destruction joins them. A thread
        that frees a tensor while the interpreter ends would abort the process.
        """
        group, self._group = self._group, None
        if group is not None:
            group.shutdown()


class _Sending:
    """A message under way, sent from a copy that the sender cannot overwrite."""

    def __init__(self, group: Any, held: torch.Tensor, to: int) -> None:
        self._held = held
        self._work = group.send([held], to, 0)

    def wait(self) -> None:
        self._work.wait()


class Together:
    """Handle of several operations under way."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


class _SplitWork:
    """Handle of an all-to-all that splits the received tensor into several."""

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
    """Context in which autograd and the script's dispatch modes see nothing, as in C++.

    It is a class, because a small collective enters it twice, and a generator would take as long as the
    exchange. The guard against modes takes as long, too: without a mode it is not entered.

    Args:
        flat: the only tensor from outside; without it the guard is always entered.
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
    """A handle that hides its waiting from autograd and modes."""

    def __init__(self, started: PendingCollective) -> None:
        self._started = started

    def wait(self) -> None:
        with unseen():
            self._started.wait()


class SharedMemoryBackend:
    """Backend of the ranks of one host."""

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
        """Sum like `all_reduce`, and return when the tensor may be read."""
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
