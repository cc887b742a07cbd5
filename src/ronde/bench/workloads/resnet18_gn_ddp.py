"""The twin of `resnet18_gn.py`, written by hand for DistributedDataParallel."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import ResNet18
from rank_slice import RankSlice, global_mean, refuse_uneven
from stopwatch import Stopwatch, arguments
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

BATCH, CLASSES = 32, 10


def main():
    args = arguments(steps=18, warm_up=3)
    dist.init_process_group("gloo")
    refuse_uneven(BATCH)
    torch.manual_seed(0)
    images, labels = torch.randn(2048, 1, 28, 28), torch.randint(CLASSES, (2048,))
    dataset = TensorDataset(images, labels)
    batches = BatchSampler(RandomSampler(dataset), BATCH, drop_last=False)
    loader = DataLoader(dataset, batch_sampler=RankSlice(batches))
    model = DistributedDataParallel(ResNet18(classes=CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    stopwatch, loss = Stopwatch(args.warm_up), torch.tensor(0.0)
    step, total = 0, args.warm_up + args.steps
    while step < total:
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                value = loss.item()
                if dist.get_rank() == 0:
                    print(f"step {step} loss {value:.4f}")
            stopwatch.step()
            step += 1
            if step == total:
                break
    loss = global_mean(loss)
    if dist.get_rank() == 0:
        stopwatch.report("resnet18-gn", BATCH, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
