"""Import torch and do one step, for the time of the whole process."""

import argparse

import torch
import torch.nn.functional as F
from stopwatch import Stopwatch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    device = parser.parse_args().device
    torch.manual_seed(0)
    stopwatch = Stopwatch(warm_up=0, device=device, log_every=None)
    model = torch.nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = torch.randn(4, 8).to(device), torch.tensor([0, 1, 0, 1]).to(device)
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    stopwatch.step(loss)
    stopwatch.report("start-up", 4)


if __name__ == "__main__":
    main()
