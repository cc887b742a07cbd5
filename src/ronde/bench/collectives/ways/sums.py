"""All-reduce by the algorithm that a plan names."""

from __future__ import annotations

from ronde.bench.collectives.operand import Operand
from ronde.bench.collectives.way import Call, Meeting
from ronde.bench.collectives.ways.comm_way import CommWay, join_comm

__all__ = ["SumsWay", "join"]


class SumsWay(CommWay):
    """All-reduce only, from ordinary tensors."""

    def prepare(self, operation: str, elements: int) -> tuple[Operand, Call]:
        comm = self.comm
        operand = Operand(operation, elements, rank=comm.rank, ranks=comm.world_size)
        return operand, lambda _: comm.all_reduce(operand.given)


def join(meeting: Meeting) -> SumsWay:
    """Meet the other ranks."""
    return SumsWay(join_comm(meeting))
