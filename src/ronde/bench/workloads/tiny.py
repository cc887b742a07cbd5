"""A model so small that a step takes about a millisecond: what it loses is what ronde itself costs."""

import argparse

import torch
import torch.nn.functional as F
from stopwatch import Stopwatch
from torch import nn

BATCH = 32


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4000, help="timed steps")
    parser.add_argument("--warm-up", type=int, default=200, help="steps before the clock starts")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    images, labels = torch.randn(BATCH, 64), torch.randint(10, (BATCH,))
    layers = [nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    model = model.to(args.device)
    images, labels = images.to(args.device), labels.to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stopwatch = Stopwatch(args.warm_up, device=args.device, log_every=None)
    for _ in range(args.warm_up + args.steps):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        stopwatch.step(loss)
    stopwatch.report("tiny", BATCH)


if __name__ == "__main__":
    main()
