"""An optimizer that does nothing: what a step costs the host beside the model and the optimizer.

On one rank ronde stands around steps alone. A model's own step hides microseconds in its noise; here there is
nothing else.
"""

import argparse

import torch
from stopwatch import Stopwatch


class Nothing(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500_000, help="timed steps")
    parser.add_argument("--warm-up", type=int, default=20_000, help="steps before the clock starts")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    parameter = torch.nn.Parameter(torch.zeros(1, device=args.device))
    optimizer, loss = Nothing([parameter]), torch.zeros(1, device=args.device)
    stopwatch = Stopwatch(args.warm_up, device=args.device, log_every=None)
    for _ in range(args.warm_up + args.steps):
        optimizer.step()
        stopwatch.step(loss)
    stopwatch.report("host", 1)


if __name__ == "__main__":
    main()
