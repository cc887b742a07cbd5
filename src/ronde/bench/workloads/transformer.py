"""A small transformer encoder, 4 layers of 256, on batches of 32 x 64 tokens."""

import torch
import torch.nn.functional as F
from models import Transformer
from stopwatch import Stopwatch, arguments
from torch.utils.data import DataLoader, TensorDataset

BATCH, LENGTH, VOCABULARY, CLASSES = 32, 64, 1000, 10


def main():
    args = arguments(steps=40, warm_up=5)
    torch.manual_seed(0)
    total = args.warm_up + args.steps
    tokens = torch.randint(VOCABULARY, (total * BATCH, LENGTH))
    labels = tokens[:, 0] % CLASSES
    loader = DataLoader(TensorDataset(tokens, labels), batch_size=BATCH, shuffle=True)
    model = Transformer(VOCABULARY, CLASSES, length=LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    stopwatch, loss = Stopwatch(args.warm_up), torch.tensor(0.0)
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        stopwatch.step()
    stopwatch.report("transformer", BATCH, loss.item())


if __name__ == "__main__":
    main()
