"""A torch process group over ronde's shared memory, for the scripts by hand.

`parallelize_module` by hand and `tensor=N` then differ in what they compute and send, not in the transport.
"""

from typing import Any

import torch
import torch.distributed as dist

from ronde.comm.shared_memory import SharedMemory
from ronde.comm.store_exchange import exchange_by

NAME = "ronde"
# Typed for callers in Python; C++ calls its methods with options.
_ProcessGroup: Any = dist.ProcessGroup


class SharedMemoryGroup(_ProcessGroup):
    """Collectives on CPU tensors of one host, complete when they return."""

    def __init__(self, shared):
        super().__init__(shared.rank, shared.ranks)
        self._shared = shared
        self._name = ""
        # A device without a backend: torch asks which devices a group serves.
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, None)

    # torch keeps the name in the backend, which this group does not have.

    @property
    def group_name(self):
        return self._name

    def _set_group_name(self, name):
        self._name = name

    def _set_group_desc(self, desc):
        pass

    @torch.no_grad()
    def allreduce(self, tensors, opts=None):
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        name = "sum" if op == dist.ReduceOp.SUM else "max"
        assert name == "sum" or op == dist.ReduceOp.MAX, op
        for tensor in tensors:
            flat = tensor.contiguous()
            self._shared.all_reduce(flat.view(-1), name)
            if flat is not tensor:
                tensor.copy_(flat)
        return _Completed()

    @torch.no_grad()
    def broadcast(self, tensors, opts):
        for tensor in tensors:
            assert tensor.is_contiguous()
            self._shared.broadcast(tensor.view(-1), opts.rootRank)
        return _Completed()

    @torch.no_grad()
    def all_gather_single(self, output, own, opts=None):
        self._shared.all_gather(output.view(self.size(), -1), own.contiguous().view(-1))
        return _Completed()

    @torch.no_grad()
    def reduce_scatter_single(self, output, whole, opts):
        self._shared.reduce_scatter(output.view(-1), whole.contiguous().view(-1).chunk(self.size()))
        if opts.reduceOp == dist.ReduceOp.AVG:
            output.div_(self.size())
        return _Completed()

    # Their names before torch 2.13.
    _allgather_base, _reduce_scatter_base = all_gather_single, reduce_scatter_single

    @torch.no_grad()
    def scatter(self, outputs, inputs, opts):
        """Scatter by broadcasts of all parts; each parameter needs it once."""
        (out,) = outputs
        for rank in range(self.size()):
            part = inputs[0][rank].contiguous() if self.rank() == opts.rootRank else torch.empty_like(out)
            self._shared.broadcast(part.view(-1), opts.rootRank)
            if rank == self.rank():
                out.copy_(part)
        return _Completed()

    def shutdown(self):
        self._shared.close()


class _Completed(dist.Work):
    def wait(self, timeout=None):
        return True


def register():
    """Let torch's `init_process_group(NAME)` make groups of shared memory, in this process."""

    def create(store, rank, size, timeout):
        return SharedMemoryGroup(SharedMemory(rank, size, exchange_by(store, rank, size), timeout=timeout))

    dist.Backend.register_backend(NAME, create, devices=["cpu"])
