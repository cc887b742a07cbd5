"""A worker of `ronde.KVStore`, with the requests of `mxnet_worker`."""

from __future__ import annotations

import sys
import time

import torch

from ronde.server.kv_store import KVStore

__all__ = ["main"]


def main() -> None:
    """Answer requests until stdin ends."""
    torch.set_num_threads(1)
    with KVStore("dist_sync") as store:
        made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        print("ready", flush=True)
        for line in sys.stdin:
            size, times = map(int, line.split())
            if size not in made:
                store.init(size, torch.zeros(size))
                made[size] = torch.ones(size), torch.zeros(size)
            value, out = made[size]
            begun = time.perf_counter()
            for _ in range(times):
                store.push(size, value)
                store.pull(size, out=out)
            print(time.perf_counter() - begun, flush=True)


if __name__ == "__main__":
    main()
