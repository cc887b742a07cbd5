"""Ranks that call different collectives: found where they part, with the lines of the script."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from ronde.comm.lockstep_check import LockstepCheck
from ronde.comm.process_group import Comm
from ronde.comm.rendezvous import join
from ronde.comm.topology import RankPosition
from ronde.errors import DivergedError, PeerLost
from ronde.trace.lockstep_board import LockstepBoard


@contextmanager
def checked(rank: Any, name: str) -> Iterator[Comm]:
    """A group of its own, with a board, for one test."""
    board = LockstepBoard(Path(rank.directory, f"{name}.board"), rank.rank, rank.world_size)
    comm = join(
        "file://" + os.path.join(rank.directory, f"{name}.store"),
        name=name,
        place=RankPosition(rank.rank, rank.world_size, rank.rank, rank.world_size),
        device="cpu",
        timeout=timedelta(seconds=30),
        host="127.0.0.1",
        check=LockstepCheck(board, first_rank=0),
    )
    try:
        yield comm
    finally:
        comm.close()


def _outcome(action: Callable[[], Any]) -> str:
    """The lines in which an error tells who was where, without line numbers; or that there was none."""
    try:
        action()
    except DivergedError as error:
        places = [line for line in str(error).splitlines() if line.startswith("  rank")]
        return "; ".join(place.split(" at ")[0].strip() + place.rpartition(":")[2] for place in places)
    except PeerLost:
        return "lost"
    return "went on"


def _agreeing(rank: Any) -> float:
    with checked(rank, "agreeing") as comm:
        for step in range(100):
            comm.mark(f"step {step}")
            comm.all_reduce(torch.ones(step))
        comm.barrier()
        gathered = comm.all_gather(torch.tensor([float(rank.rank)]))
        return float(gathered.sum()) + float(comm.broadcast_object([1.0])[0])


def test_ranks_in_step(ranks: Any) -> None:
    assert ranks(2, _agreeing) == [2.0, 2.0]


def _other_shape(rank: Any) -> str:
    with checked(rank, "shape") as comm:
        comm.all_reduce(torch.ones(2))
        return _outcome(lambda: comm.all_reduce(torch.ones(3 + rank.rank)))


def _other_operation(rank: Any) -> str:
    with checked(rank, "operation") as comm:
        value = torch.ones(2)
        return _outcome(lambda: comm.broadcast(value) if rank.rank else comm.all_gather(value))


def _other_line(rank: Any) -> str:
    with checked(rank, "line") as comm:
        if rank.rank:
            return _outcome(lambda: comm.all_reduce(torch.ones(2)))
        return _outcome(lambda: comm.all_reduce(torch.ones(2)))


def _below_one_line(rank: Any) -> str:
    with checked(rank, "below") as comm, comm.at_one_line():
        if rank.rank:
            return _outcome(lambda: comm.all_reduce(torch.ones(2)))
        return _outcome(lambda: comm.all_reduce(torch.ones(2)))


def test_lines_below_one_are_not_compared(ranks: Any) -> None:
    assert ranks(2, _below_one_line) == ["went on"] * 2


def _other_mark(rank: Any) -> str:
    with checked(rank, "mark") as comm:
        return _outcome(lambda: [comm.mark(f"step {rank.rank}"), comm.barrier()])


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (_other_shape, "rank 0 all_reduce of float32 [3]; rank 1 all_reduce of float32 [4]"),
        (_other_operation, "rank 0 all_gather of float32 [2]; rank 1 broadcast of float32 [2]"),
        (_other_line, "rank 0 all_reduce of float32 [2]; rank 1 all_reduce of float32 [2]"),
        (_other_mark, "rank 0 step 0; rank 1 step 1"),
    ],
)
def test_ranks_out_of_step(ranks: Any, part: Any, told: str) -> None:
    """Whoever comes second sees it at once; the first one learns it when the second leaves."""
    assert ranks(2, part) == [told, told]
