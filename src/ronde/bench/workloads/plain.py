"""A workload on one device, as a user writes it: `ronde run` runs this very file on its ranks."""

import torch
from command_line import arguments
from stopwatch import Stopwatch
from text import Text
from torch.utils.data import DataLoader, RandomSampler


def batches(data, args):
    if isinstance(data, Text):
        return (data.draw(args.batch_size) for _ in range(args.total))
    # The order of DistributedSampler's ranks together, so that all contenders see the same batches.
    order = RandomSampler(data, generator=torch.Generator().manual_seed(0))
    return DataLoader(data, args.batch_size, sampler=order)


def main():
    args = arguments()
    workload = args.workload
    torch.manual_seed(0)
    data = workload.data(args.samples)
    model = workload.model().to(args.device)
    optimizer = workload.optimizer(model.parameters())
    stopwatch = Stopwatch(args.warm_up, device=args.device, trajectory=args.trajectory)
    for inputs, targets in batches(data, args):
        inputs, targets = inputs.to(args.device), targets.to(args.device)
        loss = workload.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stopwatch.step(loss)
    stopwatch.report(args.name, args.batch_size)


if __name__ == "__main__":
    main()
