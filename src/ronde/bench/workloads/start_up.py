"""Imports torch and does one step: the time of the whole process is what counts."""

import torch
import torch.nn.functional as F
from stopwatch import Stopwatch


def main():
    torch.manual_seed(0)
    stopwatch = Stopwatch(warm_up=0)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = F.cross_entropy(model(torch.randn(4, 8)), torch.tensor([0, 1, 0, 1]))
    loss.backward()
    optimizer.step()
    stopwatch.step()
    stopwatch.report("start-up", 4, loss.item())


if __name__ == "__main__":
    main()
