"""The twin of `plain.py` for Horovod, as its documentation says; `ronde horovodrun` starts it."""

import horovod.torch as hvd
import torch
from command_line import arguments
from drawn import Drawn
from stopwatch import Stopwatch
from torch.utils.data import DataLoader, DistributedSampler


def batches(data, args):
    rank, ranks = hvd.rank(), hvd.size()
    if isinstance(data, Drawn):
        return (data.draw(args.batch_size, rank=rank, ranks=ranks) for _ in range(args.total))
    sampler = DistributedSampler(data, num_replicas=ranks, rank=rank)
    return DataLoader(data, args.batch_size // ranks, sampler=sampler)


def main():
    hvd.init()
    args = arguments(ranks=hvd.size())
    workload = args.workload
    torch.manual_seed(0)
    data = workload.data(args.samples)
    model = workload.twins()
    optimizer = workload.optimizer(model.parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    stopwatch = Stopwatch(
        args.warm_up,
        speaks=hvd.rank() == 0,
        mean=lambda loss: hvd.allreduce(loss.detach()).item(),
        reads_loss=workload.reads_loss,
        trajectory=args.trajectory,
    )
    for inputs, targets in batches(data, args):
        loss = workload.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stopwatch.step(loss)
    stopwatch.report(args.name, args.batch_size)


if __name__ == "__main__":
    main()
