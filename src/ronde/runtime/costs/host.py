"""Measures this host from all its ranks at once, as a training loads it.

Twelve products, a copy, attention, the shortest operation, and sums at three sizes: some ten seconds. All
ranks compute at the same time, because they share memory's bandwidth.
`python -m ronde.runtime.costs.host FOLDER RANKS` writes FOLDER/host.json.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from ronde.cluster.cores import available_cores
from ronde.comm.process_group import Comm
from ronde.comm.rendezvous import join
from ronde.comm.topology import RankPosition

__all__ = ["main"]

_PRODUCTS = (
    *((64, 64, 64), (64, 256, 256), (256, 64, 256), (128, 512, 128), (256, 256, 256), (256, 1024, 256)),
    *(
        (1024, 256, 256),
        (512, 512, 512),
        (512, 2048, 512),
        (1024, 1024, 1024),
        (2048, 512, 512),
        (64, 2048, 512),
    ),
)
_SIZES = (1 << 14, 1 << 18, 1 << 22)
_SECONDS = 0.3
_ROUNDS = 9
_TIMEOUT = 120


def main(folder: str, ranks: str, rank: str | None = None) -> None:
    """Start the ranks, or be one of them."""
    if rank is None:
        threads = max(1, available_cores() // int(ranks))
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, "-m", "ronde.runtime.costs.host", folder, ranks]
        started = [subprocess.Popen([*command, str(each)], env=environment) for each in range(int(ranks))]
        sys.exit(max(abs(each.wait(_TIMEOUT)) for each in started))
    place = RankPosition(int(rank), int(ranks), int(rank), int(ranks))
    comm = join(
        f"file://{folder}/store",
        name="host",
        place=place,
        device="cpu",
        timeout=timedelta(seconds=_TIMEOUT),
        host="127.0.0.1",
        algorithm="auto",
    )
    torch.set_num_threads(max(1, available_cores() // int(ranks)))
    found = _measure(comm)
    if int(rank) == 0:
        Path(folder, "host.json").write_text(json.dumps(found))
    comm.close()


def _measure(comm: Comm) -> dict[str, Any]:
    torch.manual_seed(0)
    products = [(*size, _together(comm, _product(*size))) for size in _PRODUCTS]
    numbers = torch.ones(1 << 24)
    target = torch.empty_like(numbers)
    copy = 2 * numbers.nbytes / _together(comm, lambda: target.copy_(numbers))
    heads, tokens, size = 8, 256, 64
    shape = (4, heads, tokens, size)
    query = torch.randn(shape)
    attention = torch.nn.functional.scaled_dot_product_attention
    seconds = _together(comm, lambda: attention(query, query, query))
    small = torch.ones(4)
    return {
        "ranks": comm.world_size,
        "cores": available_cores(),
        "products": products,
        "copy": copy,
        "attention": 4.0 * query.numel() * tokens / seconds,
        "launch": _together(comm, lambda: small.add_(1.0)),
        "sums": [(each, _sum(comm, each)) for each in _SIZES] if comm.world_size > 1 else [],
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "torch": torch.__version__,
    }


def _product(m: int, n: int, k: int) -> Callable[[], Any]:
    """Return a function that runs a product as in a linear layer."""
    left, right = torch.randn(m, k), torch.randn(n, k)
    return lambda: torch.nn.functional.linear(left, right)


def _together(comm: Comm, work: Callable[[], Any], clock: Callable[[], float] = time.thread_time) -> float:
    """Measure the median seconds of the work while all ranks do it.

    The clock is that of this thread by default: what other programs take of the core is not counted.
    """
    for _ in range(3):
        work()
    begun = time.perf_counter()
    work()
    once = max(time.perf_counter() - begun, 1e-7)
    often = int(max(1, min(2000, _SECONDS / _ROUNDS / once)))
    often = int(comm.all_reduce(torch.tensor([float(often)]))[0] / comm.world_size) or 1
    rounds: list[float] = []
    for _ in range(_ROUNDS):
        comm.barrier()
        begun = clock()
        for _ in range(often):
            work()
        rounds.append((clock() - begun) / often)
    return statistics.median(rounds)


def _sum(comm: Comm, size: int) -> float:
    """Measure the seconds of an all-reduce of `size` bytes."""
    numbers = torch.zeros(size // 4)
    return _together(comm, lambda: comm.all_reduce(numbers), time.perf_counter)


if __name__ == "__main__":
    main(*sys.argv[1:])
