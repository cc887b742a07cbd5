"""The twin of `gpt.py`, written by hand for DistributedDataParallel."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import GPT
from rank_slice import global_mean, refuse_uneven
from stopwatch import Stopwatch, arguments
from torch.nn.parallel import DistributedDataParallel

BATCH, LENGTH, VOCABULARY = 32, 64, 8000


def get_batch(text):
    starts = torch.randint(len(text) - LENGTH, (BATCH,)).chunk(dist.get_world_size())[dist.get_rank()]
    x = torch.stack([text[start : start + LENGTH] for start in starts])
    y = torch.stack([text[start + 1 : start + 1 + LENGTH] for start in starts])
    return x, y


def main():
    args = arguments(steps=25, warm_up=5)
    dist.init_process_group("gloo")
    refuse_uneven(BATCH)
    torch.manual_seed(0)
    text = torch.randint(VOCABULARY, (100_000,))
    model = DistributedDataParallel(GPT(VOCABULARY, length=LENGTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    stopwatch, loss = Stopwatch(args.warm_up), torch.tensor(0.0)
    for step in range(args.warm_up + args.steps):
        x, y = get_batch(text)
        logits = model(x)
        loss = F.cross_entropy(logits.view(-1, VOCABULARY), y.view(-1))
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
        stopwatch.report("gpt", BATCH, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
