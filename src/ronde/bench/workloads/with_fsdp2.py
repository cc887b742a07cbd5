"""The twin of `plain.py` by hand with sharded parameters, as torch's documentation of FSDP2 says."""

import torch
import torch.distributed as dist
from command_line import arguments
from stopwatch import Stopwatch
from torch.distributed.fsdp import fully_shard
from units import units
from with_ddp import batches, global_mean


def sharded(model):
    """Each repeated block is a unit, what is left another."""
    for block in units(model):
        fully_shard(block)
    return fully_shard(model)


def main():
    dist.init_process_group("gloo")
    args = arguments(ranks=dist.get_world_size())
    workload = args.workload
    torch.manual_seed(0)
    data = workload.data(args.samples)
    model = sharded(workload.model())
    optimizer = workload.optimizer(model.parameters())
    stopwatch = Stopwatch(
        args.warm_up, speaks=dist.get_rank() == 0, mean=global_mean, trajectory=args.trajectory
    )
    for inputs, targets in batches(data, args):
        loss = workload.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stopwatch.step(loss)
    stopwatch.report(args.name, args.batch_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
