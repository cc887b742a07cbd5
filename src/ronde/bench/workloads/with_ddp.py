"""The twin of `plain.py` by hand, as the documentation of DistributedDataParallel says.

Its two settings that are said to save time, and are right for these models, are on.
"""

import torch
import torch.distributed as dist
from command_line import arguments
from drawn import Drawn
from stopwatch import Stopwatch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def batches(data, args):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if isinstance(data, Drawn):
        return (data.draw(args.batch_size, rank=rank, ranks=ranks) for _ in range(args.total))
    return DataLoader(data, args.batch_size // ranks, sampler=DistributedSampler(data))


def global_mean(loss):
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def replicated(model):
    return DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)


def own_optimizer(workload, parameters):
    return workload.optimizer(parameters)


def train(make_optimizer=own_optimizer, distributed=replicated):
    """The whole script; `make_optimizer(workload, parameters)`, and `distributed(model)`."""
    dist.init_process_group("gloo")
    args = arguments(ranks=dist.get_world_size())
    workload = args.workload
    torch.manual_seed(0)
    data = workload.data(args.samples)
    model = distributed(workload.twins())
    optimizer = make_optimizer(workload, model.parameters())
    stopwatch = Stopwatch(
        args.warm_up,
        speaks=dist.get_rank() == 0,
        mean=global_mean,
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
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
