"""The twin of `plain.py` with Hugging Face Accelerate, as its documentation says.

`split_batches` makes the loader's batch the global one. DDP beneath has the settings of the twin by hand.
"""

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import DataLoaderConfiguration
from command_line import arguments
from drawn import Drawn
from stopwatch import Stopwatch
from torch.utils.data import DataLoader, RandomSampler


def batches(data, args, accelerator):
    rank, ranks = accelerator.process_index, accelerator.num_processes
    if isinstance(data, Drawn):
        return (data.draw(args.batch_size, rank=rank, ranks=ranks) for _ in range(args.total))
    order = RandomSampler(data, generator=torch.Generator().manual_seed(0))
    return accelerator.prepare(DataLoader(data, args.batch_size, sampler=order))


def main():
    accelerator = Accelerator(
        cpu=True,
        dataloader_config=DataLoaderConfiguration(split_batches=True),
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True, static_graph=True)],
    )
    args = arguments(ranks=accelerator.num_processes)
    workload = args.workload
    torch.manual_seed(0)
    data = workload.data(args.samples)
    model = workload.twins()
    model, optimizer = accelerator.prepare(model, workload.optimizer(model.parameters()))
    stopwatch = Stopwatch(
        args.warm_up,
        speaks=accelerator.is_main_process,
        mean=lambda loss: torch.as_tensor(accelerator.reduce(loss.detach(), "mean")).item(),
        reads_loss=workload.reads_loss,
        trajectory=args.trajectory,
    )
    for inputs, targets in batches(data, args, accelerator):
        loss = workload.loss(model(inputs), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        stopwatch.step(loss)
    stopwatch.report(args.name, args.batch_size)
    accelerator.end_training()


if __name__ == "__main__":
    main()
