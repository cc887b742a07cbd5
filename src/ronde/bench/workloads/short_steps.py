"""Steps of less than a millisecond, for the time of ronde itself: `short_steps.py host|tiny`.

`host` has an optimizer that does nothing: a model's own step would hide microseconds in its noise.
"""

import argparse

import torch
import torch.nn.functional as F
from stopwatch import Stopwatch
from torch import nn

BATCH = 32
STEPS = {"host": (500_000, 20_000), "tiny": (4000, 200)}


class Nothing(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        pass


def host(device, steps, stopwatch):
    parameter = torch.nn.Parameter(torch.zeros(1, device=device))
    optimizer, loss = Nothing([parameter]), torch.zeros(1, device=device)
    for _ in range(steps):
        optimizer.step()
        stopwatch.step(loss)
    stopwatch.report("host", 1)


def tiny(device, steps, stopwatch):
    images, labels = torch.randn(BATCH, 64).to(device), torch.randint(10, (BATCH,)).to(device)
    layers = [nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        stopwatch.step(loss)
    stopwatch.report("tiny", BATCH)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=STEPS)
    parser.add_argument("--steps", type=int, help="timed steps")
    parser.add_argument("--warm-up", type=int, help="steps before the clock starts")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    steps, warm_up = STEPS[args.name]
    steps = steps if args.steps is None else args.steps
    warm_up = warm_up if args.warm_up is None else args.warm_up
    torch.manual_seed(0)
    stopwatch = Stopwatch(warm_up, device=args.device, log_every=None)
    (host if args.name == "host" else tiny)(args.device, warm_up + steps, stopwatch)


if __name__ == "__main__":
    main()
