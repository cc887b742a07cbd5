"""A model so small that a step takes about a millisecond: what it loses is what ronde itself costs."""

import torch
import torch.nn.functional as F
from stopwatch import Stopwatch, arguments
from torch import nn

BATCH = 32


def main():
    args = arguments(steps=4000, warm_up=200)
    torch.manual_seed(0)
    images, labels = torch.randn(BATCH, 64), torch.randint(10, (BATCH,))
    layers = [nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stopwatch, loss = Stopwatch(args.warm_up), torch.tensor(0.0)
    for _ in range(args.warm_up + args.steps):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        stopwatch.step()
    stopwatch.report("tiny", BATCH, loss.item())


if __name__ == "__main__":
    main()
