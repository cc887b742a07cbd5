"""A group of one rank: what needs no peers."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch.distributed import FileStore

from ronde.comm import rendezvous
from ronde.comm.backend import TorchBackend
from ronde.comm.process_group import Comm
from ronde.comm.rendezvous import join
from ronde.comm.topology import RankPosition


def one_rank(place: Path) -> Comm:
    return join(
        f"file://{place / 'store'}",
        name="test",
        place=RankPosition(0, 1, 0, 1),
        device="cpu",
        timeout=timedelta(seconds=30),
        host="127.0.0.1",
    )


def gloo_threads() -> int:
    names = [task.read_text() for task in Path("/proc/self/task").glob("*/comm")]
    return sum("gloo" in name for name in names)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the threads' names from /proc")
def test_a_closed_group_has_no_threads(tmp_path: Path) -> None:
    before = gloo_threads()
    store = FileStore(str(tmp_path / "store"), 1)
    backend = TorchBackend(rendezvous._gloo(store, 0, 1, timedelta(seconds=30), "127.0.0.1"))
    comm = Comm(backend, rank=0, world_size=1, store=store)
    comm.all_reduce(torch.ones(3))
    assert gloo_threads() > before
    comm.close()
    assert gloo_threads() == before


def test_one_rank_has_everything_at_once(tmp_path: Path) -> None:
    comm = one_rank(tmp_path)
    values = torch.arange(6.0)
    assert comm.all_reduce(values.clone()).equal(values)
    assert comm.all_gather(values).equal(values[None])
    assert comm.broadcast(values).equal(values)
    assert comm.all_gather_object({"a": 1}) == [{"a": 1}]
    assert comm.broadcast_object([3]) == [3]
    assert comm.votes([True, False]) == [1, 0]
    (own,) = comm.all_to_all([values], [6])
    assert own.equal(values)
    comm.share([[values]])
    summed = torch.empty(6)
    comm.reduce_scatter_async(summed, [[values[:2], values[2:]]]).wait()
    assert summed.equal(values)
    comm.barrier()
    assert gloo_threads() == 0
    assert comm.algorithm.endswith("(nothing travels, there is one rank)")
    comm.close()


def test_a_group_may_be_closed_twice(tmp_path: Path) -> None:
    comm = one_rank(tmp_path)
    comm.close()
    comm.close()
