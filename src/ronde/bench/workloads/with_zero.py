"""The twin of `plain.py` by hand with sharded optimizer state, as torch's documentation says."""

from typing import Any

import torch
import torch.distributed as dist
from command_line import arguments
from stopwatch import Stopwatch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from with_ddp import batches, global_mean


def main():
    dist.init_process_group("gloo")
    args = arguments(ranks=dist.get_world_size())
    workload = args.workload
    torch.manual_seed(0)
    data = workload.data(args.samples)
    model = DistributedDataParallel(workload.model(), gradient_as_bucket_view=True, static_graph=True)
    kind: Any = workload.optimizer.func
    options = workload.optimizer.keywords
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kind, **options)
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
