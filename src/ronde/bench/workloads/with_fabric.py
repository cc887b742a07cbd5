"""The twin of `plain.py` with Lightning Fabric, as its documentation says.

A loader's batch is a process's own there. DDP beneath has the settings of the twin by hand.
"""

import os

import torch
from command_line import arguments
from drawn import Drawn
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from stopwatch import Stopwatch
from torch.utils.data import DataLoader


def batches(data, args, fabric):
    rank, ranks = fabric.global_rank, fabric.world_size
    if isinstance(data, Drawn):
        return (data.draw(args.batch_size, rank=rank, ranks=ranks) for _ in range(args.total))
    return fabric.setup_dataloaders(DataLoader(data, args.batch_size // ranks, shuffle=True))


def main():
    fabric = Fabric(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=DDPStrategy(gradient_as_bucket_view=True, static_graph=True),
    )
    fabric.launch()
    args = arguments(ranks=fabric.world_size)
    workload = args.workload
    torch.manual_seed(0)
    data = workload.data(args.samples)
    model = workload.twins()
    model, optimizer = fabric.setup(model, workload.optimizer(model.parameters()))
    stopwatch = Stopwatch(
        args.warm_up,
        speaks=fabric.is_global_zero,
        mean=lambda loss: torch.as_tensor(fabric.all_reduce(loss.detach().clone())).item(),
        reads_loss=workload.reads_loss,
        trajectory=args.trajectory,
    )
    for inputs, targets in batches(data, args, fabric):
        loss = workload.loss(model(inputs), targets)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        stopwatch.step(loss)
    stopwatch.report(args.name, args.batch_size)


if __name__ == "__main__":
    main()
