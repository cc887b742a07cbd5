"""The twin of `transformer.py`, written by hand for DistributedDataParallel."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import Transformer
from rank_slice import RankSlice, global_mean, refuse_uneven
from stopwatch import Stopwatch, arguments
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

BATCH, LENGTH, VOCABULARY, CLASSES = 32, 64, 1000, 10


def main():
    args = arguments(steps=40, warm_up=5)
    dist.init_process_group("gloo")
    refuse_uneven(BATCH)
    torch.manual_seed(0)
    total = args.warm_up + args.steps
    tokens = torch.randint(VOCABULARY, (total * BATCH, LENGTH))
    labels = tokens[:, 0] % CLASSES
    dataset = TensorDataset(tokens, labels)
    batches = BatchSampler(RandomSampler(dataset), BATCH, drop_last=False)
    loader = DataLoader(dataset, batch_sampler=RankSlice(batches))
    model = DistributedDataParallel(Transformer(VOCABULARY, CLASSES, length=LENGTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    stopwatch, loss = Stopwatch(args.warm_up), torch.tensor(0.0)
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            value = loss.item()
            if dist.get_rank() == 0:
                print(f"step {step} loss {value:.4f}")
        stopwatch.step()
    loss = global_mean(loss)
    if dist.get_rank() == 0:
        stopwatch.report("transformer", BATCH, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
