"""Shared memory of one host as a torch process group, so that torch's own layers can use it.

What torch's layers send on CPU tensors through Python (`torch.distributed.*`, FSDP2, pipelining) or C++
(DDP's reducer, the functional collectives of DTensor) arrives at the methods here; decision 53 lists the
calls. There is no other backend inside: what C++ sends past them fails, and is carried by nothing else.
Collectives are complete when they return, whatever `async_op` says; only a receive may be waited for later.

Nothing is registered by importing this: see `registered`.
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ronde.comm.as_bytes import as_bytes
from ronde.comm.backend import unseen
from ronde.comm.group_tensors import (
    WIDER,
    as_list,
    contiguous,
    divide,
    give_back,
    op_of,
    plain,
    reduction,
    split_rows,
)
from ronde.comm.reductions import REDUCTIONS, reduce_into
from ronde.comm.shared_memory import SharedMemory
from ronde.comm.shared_subgroup import shared_subgroup
from ronde.comm.store_exchange import exchange_by
from ronde.comm.torch_work import Completed, Message
from ronde.errors import UsageError

__all__ = ["SharedMemoryGroup", "registered"]

# Tags of messages that are not the caller's.
_GATHER, _SCATTER = -2, -3


def _carried(method: Callable[..., Any]) -> Callable[..., Any]:
    """One call at a time, counted, and unseen by autograd and by modes, as a backend in C++ is."""

    @functools.wraps(method)
    def carried(self: SharedMemoryGroup, *args: Any, **options: Any) -> Any:
        with self.lock, unseen():
            self.calls[method.__name__] += 1
            return method(self, *args, **options)

    return carried


class SharedMemoryGroup(dist.ProcessGroup):
    """A process group of ranks of one host.

    Args:
        shared: carries the bytes; closed with the group.

    Attributes:
        calls: how often each method was called.
    """

    # What torch asks a group's backend before it uses what is not here.
    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(self, shared: SharedMemory) -> None:
        place: tuple[Any, ...] = (shared.rank, shared.ranks)
        super().__init__(*place)
        self.shared = shared
        self.lock = threading.RLock()
        self.calls: collections.Counter[str] = collections.Counter()
        self._name = self._description = ""
        # A device without a backend: torch asks which devices a group serves.
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, None)

    # Names. The base keeps them in its backend, which this has none of.

    @property
    def group_name(self) -> Any:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._description = desc

    def getGroupName(self) -> str:
        return self._name

    def getGroupDesc(self) -> str:
        return self._description

    def getBackendName(self) -> str:
        return "shared memory"

    def name(self) -> str:
        return "shared memory"

    def _get_backend(self, device: torch.device) -> Any:
        return self

    # Collectives

    @_carried
    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        for tensor in as_list(tensors):
            self._all_reduce(tensor, op_of(opts))
        return Completed(as_list(tensors))

    @_carried
    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        for tensor in tensors:
            self._all_reduce(tensor, op_of(opts))
        return Completed(tensors)

    @_carried
    def reduce(self, tensors: Any, opts: Any) -> dist.Work:
        for tensor in tensors:
            mine = tensor if opts.rootRank == self.rank() else tensor.clone()
            self._all_reduce(mine, opts.reduceOp)
        return Completed(tensors)

    @_carried
    def broadcast(self, tensors: Any, opts: Any) -> dist.Work:
        for tensor in as_list(tensors):
            flat = contiguous(tensor)
            self.shared.broadcast(as_bytes(flat), opts.rootRank)
            give_back(tensor, flat)
        return Completed(as_list(tensors))

    @_carried
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        for outs, mine in zip(outputs, inputs, strict=True):
            self._all_gather(outs, mine)
        return Completed([list(outs) for outs in outputs])

    @_carried
    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        for place, mine in enumerate(inputs):
            self._all_gather([of_rank[place] for of_rank in outputs], mine)
        return Completed([])

    @_carried
    def all_gather_single(self, output: torch.Tensor, mine: torch.Tensor, opts: Any = None) -> dist.Work:
        self._all_gather_single(output, mine)
        return Completed([output])

    @_carried
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        for output, mine in zip(outputs, inputs, strict=True):
            self._all_gather_single(output, mine)
        return Completed(outputs)

    @_carried
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        for output, pieces in zip(outputs, inputs, strict=True):
            self._reduce_scatter(output, pieces, opts.reduceOp)
        return Completed(outputs)

    @_carried
    def reduce_scatter_single(self, output: torch.Tensor, whole: torch.Tensor, opts: Any) -> dist.Work:
        self._reduce_scatter_single(output, whole, opts.reduceOp)
        return Completed([output])

    @_carried
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        for output, whole in zip(outputs, inputs, strict=True):
            self._reduce_scatter_single(output, whole, opts.reduceOp)
        return Completed(outputs)

    @_carried
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        self._all_to_all(outputs, inputs)
        return Completed(outputs)

    @_carried
    def all_to_all_single(
        self, output: torch.Tensor, mine: torch.Tensor, output_sizes: Any, sizes: Any, opts: Any = None
    ) -> dist.Work:
        flat = contiguous(output)
        self._all_to_all(split_rows(flat, output_sizes, self.size()), split_rows(mine, sizes, self.size()))
        give_back(output, flat)
        return Completed([output])

    @_carried
    def gather(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        """By messages: only the root knows how long each rank's part is."""
        mailbox = self.shared.mailbox
        for place, mine in enumerate(inputs):
            mailbox.wait(mailbox.send(as_bytes(contiguous(mine)), opts.rootRank, _GATHER))
            if self.rank() == opts.rootRank:
                for source, out in enumerate(outputs[place]):
                    self._receive_now(out, source, _GATHER)
        return Completed(outputs)

    @_carried
    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        mailbox = self.shared.mailbox
        for place, out in enumerate(outputs):
            if self.rank() == opts.rootRank:
                for to, piece in enumerate(inputs[place]):
                    mailbox.wait(mailbox.send(as_bytes(contiguous(piece)), to, _SCATTER))
            self._receive_now(out, opts.rootRank, _SCATTER)
        return Completed(outputs)

    @_carried
    def barrier(self, opts: Any = None) -> dist.Work:
        self.shared.barrier()
        return Completed([])

    @_carried
    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        self.shared.barrier()

    # Messages

    @_carried
    def send(self, tensors: Any, to: int, tag: int) -> dist.Work:
        mailbox = self.shared.mailbox
        (tensor,) = tensors
        item = mailbox.send(as_bytes(contiguous(tensor)), to, tag)
        return Message(mailbox, item, tensors, self.lock)

    @_carried
    def recv(self, tensors: Any, source: int, tag: int) -> dist.Work:
        return self._receive(tensors, source, tag)

    @_carried
    def recv_anysource(self, tensors: Any, tag: int) -> dist.Work:
        return self._receive(tensors, None, tag)

    # What torch does with a group

    def split_group(self, ranks: Sequence[int], *_: Any, group_name: str | None = None, **__: Any) -> Any:
        """A group of some of the ranks, called by these; None on others."""
        shared = shared_subgroup(self.shared, ranks)
        if shared is None:
            return None
        group = SharedMemoryGroup(shared)
        group._set_group_name(group_name or f"{self._name}/{'-'.join(map(str, ranks))}")
        return group

    def set_timeout(self, timeout: timedelta) -> None:
        self.shared.waiting.timeout = timeout.total_seconds()

    def _start_coalescing(self, device: torch.device) -> None:
        """Calls that are to be one are carried one after the other."""

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        return Completed([])

    def shutdown(self) -> None:
        self.shared.close()

    def abort(self) -> None:
        self.shared.close()

    def _all_reduce(self, tensor: torch.Tensor, op: Any) -> None:
        name, factor = reduction(op)
        tensor = plain(tensor)
        if tensor.is_sparse:
            self._all_reduce_sparse(tensor, name)
            return
        flat = contiguous(tensor)
        if (wider := WIDER.get(flat.dtype)) is not None:
            flat = flat.to(wider)
        if factor is not None:
            flat.mul_(factor)
        self.shared.all_reduce(flat.view(-1), "sum" if name == "avg" else name)
        if name == "avg":
            divide(flat, self.size())
        give_back(tensor, flat)

    def _all_reduce_sparse(self, tensor: torch.Tensor, name: str) -> None:
        """Rows that some ranks have and others have not: all are gathered, and those of one place summed."""
        if name not in ("sum", "avg"):
            raise UsageError(f"sparse tensors are reduced by sum and avg, not by {name}; make it dense")
        mine = tensor.coalesce()
        count = torch.tensor([mine._nnz()], device="cpu")
        counts = [torch.empty_like(count) for _ in range(self.size())]
        self._all_gather(counts, count)
        parts: list[list[torch.Tensor]] = []
        for values, axis in ((mine.indices(), 1), (mine.values(), 0)):
            outs = [
                values.new_empty([*values.shape[:axis], int(each), *values.shape[axis + 1 :]])
                for each in counts
            ]
            self._all_gather(outs, values)
            parts.append(outs)
        indices, values = torch.cat(parts[0], 1), torch.cat(parts[1], 0)
        total = torch.sparse_coo_tensor(indices, values, tensor.shape, device="cpu").coalesce()
        tensor.copy_(total / self.size() if name == "avg" else total)

    def _all_gather(self, outs: Sequence[torch.Tensor], mine: torch.Tensor) -> None:
        flats = [contiguous(out) for out in outs]
        sent = contiguous(mine)
        if len({flat.numel() for flat in flats}) == 1:
            self.shared.all_gather_into([as_bytes(flat) for flat in flats], as_bytes(sent))
        else:
            flats[self.rank()].copy_(sent)
            for source, flat in enumerate(flats):
                self.shared.broadcast(as_bytes(flat), source)
        for out, flat in zip(outs, flats, strict=True):
            give_back(out, flat)

    def _all_gather_single(self, output: torch.Tensor, mine: torch.Tensor) -> None:
        flat = contiguous(output)
        self.shared.all_gather(as_bytes(flat).view(self.size(), -1), as_bytes(contiguous(mine)))
        give_back(output, flat)

    def _reduce_scatter_single(self, output: torch.Tensor, whole: torch.Tensor, op: Any) -> None:
        self._reduce_scatter(output, contiguous(whole).view(self.size(), -1).unbind(0), op)

    def _reduce_scatter(self, output: torch.Tensor, pieces: Sequence[torch.Tensor], op: Any) -> None:
        name, factor = reduction(op)
        summed = "sum" if name == "avg" else name
        flat = contiguous(output)
        sent = [contiguous(piece).view(-1) for piece in pieces]
        if factor is not None:
            sent = [piece * factor for piece in sent]
        if len({piece.numel() for piece in sent}) == 1:
            self.shared.reduce_scatter(flat.view(-1), sent, summed)
        else:
            parts = [torch.empty_like(flat.view(-1)) for _ in sent]
            self._all_to_all(parts, sent)
            reduce_into(flat.view(-1), parts, REDUCTIONS[summed])
        if name == "avg":
            divide(flat, self.size())
        give_back(output, flat)

    def _all_to_all(self, outs: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor]) -> None:
        flats = [contiguous(out) for out in outs]
        sent = [as_bytes(contiguous(piece)) for piece in pieces]
        self.shared.all_to_all([as_bytes(flat) for flat in flats], sent)
        for out, flat in zip(outs, flats, strict=True):
            give_back(out, flat)

    def _receive(self, tensors: Any, source: int | None, tag: int) -> Message:
        mailbox = self.shared.mailbox
        (tensor,) = tensors
        flat = contiguous(tensor)
        item = mailbox.receive(as_bytes(flat), source, tag)
        return Message(mailbox, item, tensors, self.lock, lambda: give_back(tensor, flat))

    def _receive_now(self, out: torch.Tensor, source: int, tag: int) -> None:
        flat = contiguous(out)
        self.shared.mailbox.wait(self.shared.mailbox.receive(as_bytes(flat), source, tag))
        give_back(out, flat)

    # The names that these have up to torch 2.12, and by which C++ calls them.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


@contextmanager
def registered(name: str = "ronde") -> Iterator[str]:
    """While inside, torch's `init_process_group(name)` and `new_group` make groups of shared memory."""
    backends = dist.Backend
    before = list(backends.backend_list)
    backends.register_backend(name, _create, devices=["cpu"])
    try:
        yield name
    finally:
        backends.backend_list[:] = before
        delattr(backends, name.upper())
        for known in (backends.backend_type_map, backends.backend_capability):
            known.pop(name)
        backends._plugins.pop(name.upper())


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> SharedMemoryGroup:
    return SharedMemoryGroup(SharedMemory(rank, size, exchange_by(store, rank, size), timeout=timeout))
