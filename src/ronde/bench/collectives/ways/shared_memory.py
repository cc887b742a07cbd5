"""ronde's shared memory, from ordinary tensors."""

from __future__ import annotations

from datetime import timedelta

from ronde import __version__
from ronde.bench.collectives.operand import Operand
from ronde.bench.collectives.way import Call, Meeting
from ronde.comm.backend import SharedMemoryBackend
from ronde.comm.joining import join as join_group
from ronde.comm.place import Place
from ronde.comm.process_group import Comm
from ronde.errors import BenchError

__all__ = ["SharedMemoryWay", "join", "join_comm"]


class SharedMemoryWay:
    """All operations; `comm` is what ronde itself calls, and the library below it for the others."""

    version = f"ronde {__version__}"

    def __init__(self, comm: Comm, backend: SharedMemoryBackend) -> None:
        self.rank = comm.rank
        self._comm, self._backend = comm, backend

    def prepare(self, operation: str, elements: int) -> tuple[Operand, Call]:
        ranks = self._comm.world_size
        operand = Operand(operation, elements, rank=self.rank, ranks=ranks)
        return operand, self._call(operation, operand)

    def _call(self, operation: str, operand: Operand) -> Call:
        given, result, ranks = operand.given, operand.result, self._comm.world_size
        comm, backend, shared = self._comm, self._backend, self._backend.shared
        match operation:
            case "all-reduce":
                return lambda _: comm.all_reduce(given)
            case "reduce-scatter":
                pieces = given.chunk(ranks)
                return lambda _: shared.reduce_scatter(result, pieces)
            case "all-gather":
                rows = result.view(ranks, -1)
                return lambda _: backend.all_gather(rows, given)
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

    def close(self) -> None:
        self._comm.close()


def join(meeting: Meeting) -> SharedMemoryWay:
    """Meet the other ranks.

    Raises:
        BenchError: when ranks cannot share memory here.
    """
    comm = join_comm(meeting)
    backend = comm.backend
    if not isinstance(backend, SharedMemoryBackend):
        raise BenchError(f"ranks do not use shared memory on this host: {comm.note or backend.name}")
    return SharedMemoryWay(comm, backend)


def join_comm(meeting: Meeting) -> Comm:
    """The group that `ronde run` makes on one host."""
    assert meeting.rank is not None
    place = Place(meeting.rank, meeting.ranks, meeting.rank, meeting.ranks)
    return join_group(
        f"file://{meeting.folder / 'store'}",
        name="bench",
        place=place,
        device="cpu",
        timeout=timedelta(seconds=meeting.timeout),
        host="127.0.0.1",
        algorithm=meeting.algorithm,
    )
