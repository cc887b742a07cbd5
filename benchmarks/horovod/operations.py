"""Operations of Horovod's interface beside ronde's collectives and Gloo's; `ronde horovodrun` starts it.

Prints a line of JSON: by what was measured, by way, one figure for each round.
"""

import argparse
import json
import os
import time
from datetime import timedelta

import horovod.torch as hvd
import torch
import torch.distributed as dist

from ronde.comm.rendezvous import join
from ronde.comm.topology import RankPosition

SMALL, LARGE = 1024, 25_500_000  # floats: 4 KB, and 102 MB as the gradients of a ResNet-50
MANY, OF_MANY = 160, 16_384


def ranks_together(timed, calls):
    """Milliseconds of one of so many calls, of the slowest rank."""
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(calls):
        timed()
    took = torch.tensor([(time.perf_counter() - begun) / calls * 1e3])
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return took.item()


def gloo(tensor):
    dist.all_reduce(tensor)
    tensor.div_(dist.get_world_size())


def all_at_once(tensors):
    handles = [hvd.allreduce_async_(each, name=str(place)) for place, each in enumerate(tensors)]
    for handle in handles:
        hvd.synchronize(handle)


def checked(work, tensors):
    """Check the mean over ranks, for each timed way."""
    for tensor in tensors:
        tensor.fill_(dist.get_rank())
    work()
    expected = (dist.get_world_size() - 1) / 2
    assert all(bool((tensor == expected).all()) for tensor in tensors)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--floats", type=int, default=LARGE)
    args = parser.parse_args()
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    store = dist.FileStore(os.environ["RONDE_BENCH_STORE"], size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    own = join(
        f"file://{os.environ['RONDE_BENCH_STORE']}-of-ronde",
        name="bench",
        place=RankPosition(rank, size, rank, size),
        device="cpu",
        timeout=timedelta(seconds=60),
        host="127.0.0.1",
        algorithm="auto",
    )
    small, large = torch.zeros(SMALL), torch.zeros(args.floats)
    many = [torch.zeros(OF_MANY) for _ in range(MANY)]

    def by_own(tensor):
        own.all_reduce(tensor).div_(size)

    def cycle():
        hvd.shutdown()
        hvd.init()

    def one_by_one():
        for each in many:
            gloo(each)

    exchanges = {
        "4 KB": ([small], 200, {
            "horovod": lambda: hvd.allreduce_(small, name="small"),
            "ronde": lambda: by_own(small),
            "Gloo": lambda: gloo(small),
        }),
        f"{args.floats * 4 / 1e6:.0f} MB": ([large], 3, {
            "horovod": lambda: hvd.allreduce_(large, name="large"),
            "ronde": lambda: by_own(large),
            "Gloo": lambda: gloo(large),
        }),
        f"{MANY} tensors of 64 KB": (many, 5, {
            "horovod, all at once": lambda: all_at_once(many),
            "Gloo, one by one": one_by_one,
        }),
    }  # fmt: skip
    told = {}
    for what, (tensors, calls, ways) in exchanges.items():
        for work in ways.values():
            checked(work, tensors)
        told[what] = {way: [] for way in ways}
        for number in range(args.rounds):
            for way in list(ways)[:: 1 if number % 2 == 0 else -1]:
                told[what][way].append(ranks_together(ways[way], calls))
    told["shutdown and init"] = {"horovod": [ranks_together(cycle, 5) for _ in range(args.rounds)]}
    if rank == 0:
        print(json.dumps(told), flush=True)
    own.close()
    dist.destroy_process_group()
    hvd.shutdown()


if __name__ == "__main__":
    main()
