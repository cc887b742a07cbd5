"""A workload whose steps are ronde's: forward and backward are the schedule's of a pipeline."""

import torch
from command_line import arguments
from plain import batches
from stopwatch import Stopwatch

import ronde


def main():
    args = arguments()
    workload = args.workload
    torch.manual_seed(0)
    data = workload.data(args.samples)
    model = workload.model().to(args.device)
    step = ronde.Step(model, workload.optimizer(model.parameters()), workload.loss)
    stopwatch = Stopwatch(
        args.warm_up, device=args.device, reads_loss=workload.reads_loss, trajectory=args.trajectory
    )
    for inputs, targets in batches(data, args):
        stopwatch.step(step(inputs.to(args.device), target=targets.to(args.device)))
    stopwatch.report(args.name, args.batch_size)


if __name__ == "__main__":
    main()
