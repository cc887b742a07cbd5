"""The mean of gradients that lie in memory shared by the ranks."""

from __future__ import annotations

import torch

from ronde.bench.collectives.operand import Operand
from ronde.bench.collectives.way import Call, Meeting
from ronde.bench.collectives.ways.comm_way import CommWay, join_comm
from ronde.comm.shared_buffer import SharedBuffer
from ronde.comm.small_buffer import SmallBuffer
from ronde.errors import BenchError

__all__ = ["SharedBucketsWay", "join"]


class SharedBucketsWay(CommWay):
    """All-reduce only, as the reducer does it: nothing is copied beforehand."""

    def prepare(self, operation: str, elements: int) -> tuple[Operand, Call]:
        comm = self.comm
        (buffer,) = comm.allocate([(elements, torch.float32)], [torch.device("cpu")])
        if not isinstance(buffer, (SharedBuffer, SmallBuffer)):
            raise BenchError(
                f"buckets do not lie in shared memory here: {comm.note or comm.backend.name} [R855]"
            )
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


def join(meeting: Meeting) -> SharedBucketsWay:
    """Meet the other ranks."""
    return SharedBucketsWay(join_comm(meeting))
