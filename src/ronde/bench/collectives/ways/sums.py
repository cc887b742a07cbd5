"""All-reduce by the algorithm that a plan names."""

from __future__ import annotations

from ronde import __version__
from ronde.bench.collectives.operand import Operand
from ronde.bench.collectives.way import Call, Meeting
from ronde.bench.collectives.ways.shared_memory import join_comm
from ronde.comm.process_group import Comm

__all__ = ["SumsWay", "join"]


class SumsWay:
    """All-reduce only, from ordinary tensors."""

    version = f"ronde {__version__}"

    def __init__(self, comm: Comm) -> None:
        self.rank = comm.rank
        self._comm = comm

    def prepare(self, operation: str, elements: int) -> tuple[Operand, Call]:
        comm = self._comm
        operand = Operand(operation, elements, rank=comm.rank, ranks=comm.world_size)
        return operand, lambda _: comm.all_reduce(operand.given)

    def barrier(self) -> None:
        self._comm.barrier()

    def close(self) -> None:
        self._comm.close()


def join(meeting: Meeting) -> SumsWay:
    """Meet the other ranks."""
    return SumsWay(join_comm(meeting))
