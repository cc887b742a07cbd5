"""A GPT with a vocabulary of 8,000; draws its batches from one long text with `torch.randint`."""

import torch
import torch.nn.functional as F
from models import GPT
from stopwatch import Stopwatch, arguments

BATCH, LENGTH, VOCABULARY = 32, 64, 8000


def get_batch(text):
    starts = torch.randint(len(text) - LENGTH, (BATCH,))
    x = torch.stack([text[start : start + LENGTH] for start in starts])
    y = torch.stack([text[start + 1 : start + 1 + LENGTH] for start in starts])
    return x, y


def main():
    args = arguments(steps=25, warm_up=5)
    torch.manual_seed(0)
    text = torch.randint(VOCABULARY, (100_000,))
    model = GPT(VOCABULARY, length=LENGTH)
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
            print(f"step {step} loss {loss.item():.4f}")
        stopwatch.step()
    stopwatch.report("gpt", BATCH, loss.item())


if __name__ == "__main__":
    main()
