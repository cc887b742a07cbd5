"""The mean of gradients that lie in memory shared by the ranks."""

from __future__ import annotations

import torch

from ronde import __version__
from ronde.bench.collectives.operand import Operand
from ronde.bench.collectives.way import Call, Meeting
from ronde.bench.collectives.ways.shared_memory import join_comm
from ronde.comm.process_group import Comm
from ronde.comm.shared_buffer import SharedBuffer
from ronde.errors import BenchError

__all__ = ["SharedBucketsWay", "join"]


class SharedBucketsWay:
    """All-reduce only, as the reducer does it: nothing is copied beforehand."""

    version = f"ronde {__version__}"

    def __init__(self, comm: Comm) -> None:
        self.rank = comm.rank
        self._comm = comm

    def prepare(self, operation: str, elements: int) -> tuple[Operand, Call]:
        comm = self._comm
        (buffer,) = comm.allocate([(elements, torch.float32)], [torch.device("cpu")])
        if not isinstance(buffer, SharedBuffer):
            raise BenchError(f"buckets do not lie in shared memory here: {comm.note or comm.backend.name}")
        memory, _ = buffer.open(0)
        operand = Operand(
            operation, elements, rank=comm.rank, ranks=comm.world_size, memory=memory, mean=True
        )

        def call(_: int) -> None:
            buffer.open(0)
            buffer.launch()
            buffer.reduce()
            buffer.collect()
            buffer.settle()

        return operand, call

    def barrier(self) -> None:
        self._comm.barrier()

    def close(self) -> None:
        self._comm.close()


def join(meeting: Meeting) -> SharedBucketsWay:
    """Meet the other ranks."""
    return SharedBucketsWay(join_comm(meeting))
