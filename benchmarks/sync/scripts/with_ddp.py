"""The twin of `plain.py` by hand: DistributedDataParallel, with one of torch's communication hooks."""

import task
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main():
    args = task.arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    train = task.pictures(args.data, "train")
    test = task.pictures(args.data, "t10k") if args.test_every else None
    plain = task.model(args.width)
    # Over Gloo the second all-reduce of PowerSGD starts on a thread of its own: buckets would mix theirs up.
    bucket_mb = 100 if args.hook == "powersgd" else None
    model = DistributedDataParallel(plain, gradient_as_bucket_view=True, bucket_cap_mb=bucket_mb)
    if args.hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif args.hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=2, batch_tensors_with_same_shape=True
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = task.optimizer(args, model.parameters())
    scheduler = task.schedule(args, optimizer)
    sampler = DistributedSampler(train, seed=args.seed)
    clock = task.Clock(args.warm_up)
    epoch = 0
    while clock.done < args.steps:
        sampler.set_epoch(epoch)
        epoch += 1
        rows = args.batch_size // dist.get_world_size()
        for inputs, targets in DataLoader(train, batch_size=rows, sampler=sampler, drop_last=True):
            optimizer.zero_grad()
            task.pause(args.pause)
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            scheduler.step()
            clock.step()
            if test is not None and clock.done % args.test_every == 0:
                clock.test(plain, test)
            if clock.done == args.steps:
                break
    if dist.get_rank() == 0:
        print(clock.report())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
