"""The backend of a device's library, carried by Gloo: a CPU shows how it is called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ronde.comm import rendezvous
from ronde.comm.backend import TorchBackend
from ronde.comm.process_group import Comm
from ronde.testing.run_ranks import Rank

__all__ = ["as_a_library"]


class _Told(TorchBackend):
    """Records the names of collectives."""

    def __init__(self, group: Any, calls: list[str]) -> None:
        super().__init__(group, "a library")
        self._calls = calls

    def all_gather(self, out: torch.Tensor, flat: torch.Tensor) -> Any:
        self._calls.append("all_gather")
        return super().all_gather(out, flat)

    def broadcast(self, flat: torch.Tensor, source: int) -> Any:
        self._calls.append("broadcast")
        return super().broadcast(flat, source)


@contextmanager
def as_a_library(rank: Rank, name: str, calls: list[str]) -> Iterator[Comm]:
    """A group whose tensors in host memory go the way of those on a device; `calls` gets its collectives."""
    store = dist.FileStore(f"{rank.directory}/{name}-{rank.world_size}", rank.world_size)
    seconds = timedelta(seconds=60)
    group = rendezvous._gloo(store, rank.rank, rank.world_size, seconds, "127.0.0.1")
    comm = Comm(_Told(group, calls), rank=rank.rank, world_size=rank.world_size, store=store)
    comm.barrier()  # a rank that closes its group breaks the others' connections under way
    try:
        yield comm
    finally:
        comm.close()
