"""An ordinary script for one device: `ronde run --plan PLAN plain.py`."""

import task
import torch
from torch.utils.data import DataLoader


def main():
    args = task.arguments()
    torch.manual_seed(args.seed)
    train = task.pictures(args.data, "train")
    test = task.pictures(args.data, "t10k") if args.test_every else None
    model = task.model(args.width)
    optimizer = task.optimizer(args, model.parameters())
    scheduler = task.schedule(args, optimizer)
    clock = task.Clock(args.warm_up)
    while clock.done < args.steps:
        for inputs, targets in DataLoader(train, batch_size=args.batch_size, shuffle=True, drop_last=True):
            optimizer.zero_grad()
            task.pause(args.pause)
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            scheduler.step()
            clock.step()
            if test is not None and clock.done % args.test_every == 0:
                clock.test(model, test)
            if clock.done == args.steps:
                break
    print(clock.report())


if __name__ == "__main__":
    main()
