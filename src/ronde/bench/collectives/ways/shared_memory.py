"""ronde's shared memory, from ordinary tensors."""

from __future__ import annotations

from ronde.bench.collectives.operand import Operand
from ronde.bench.collectives.way import Call, Meeting
from ronde.bench.collectives.ways.comm_way import CommWay, join_comm
from ronde.comm.backend import SharedMemoryBackend
from ronde.comm.process_group import Comm
from ronde.errors import BenchError

__all__ = ["SharedMemoryWay", "join"]


class SharedMemoryWay(CommWay):
    """All operations; `comm` is what ronde itself calls, and the library below it for the others."""

    def __init__(self, comm: Comm, backend: SharedMemoryBackend) -> None:
        super().__init__(comm)
        self._backend = backend

    def prepare(self, operation: str, elements: int) -> tuple[Operand, Call]:
        ranks = self.comm.world_size
        operand = Operand(operation, elements, rank=self.rank, ranks=ranks)
        return operand, self._call(operation, operand)

    def _call(self, operation: str, operand: Operand) -> Call:
        given, result, ranks = operand.given, operand.result, self.comm.world_size
        comm, shared = self.comm, self._backend.shared
        match operation:
            case "all-reduce":
                return lambda _: comm.all_reduce(given)
            case "reduce-scatter":
                pieces = given.chunk(ranks)
                return lambda _: shared.reduce_scatter(result, pieces)
            case "all-gather":
                rows = result.view(ranks, -1)
                return lambda _: shared.all_gather(rows, given)
            case "broadcast":
                return lambda turn: comm.broadcast(given, turn % ranks)
            case "all-to-all":
                pieces, parts = given.chunk(ranks), result.chunk(ranks)
                return lambda _: shared.all_to_all(parts, pieces)
            case "barrier":
                return lambda _: shared.barrier()
        raise AssertionError(operation)

    def barrier(self) -> None:
        self._backend.shared.barrier()


def join(meeting: Meeting) -> SharedMemoryWay:
    """Meet the other ranks.

    Raises:
        BenchError: when ranks cannot share memory here.
    """
    comm = join_comm(meeting)
    backend = comm.backend
    if not isinstance(backend, SharedMemoryBackend):
        raise BenchError(f"ranks do not use shared memory on this host: {comm.note or backend.name} [R855]")
    return SharedMemoryWay(comm, backend)
