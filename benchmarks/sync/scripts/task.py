"""Task of the scripts: a perceptron on pictures of 28 x 28."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

_DRAWN = 4096


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warm-up", type=int, default=0, help="steps before the clock starts")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--decay", action="store_true", help="the rate falls to nothing over the steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--adam", action="store_true", help="Adam at 1e-3 in place of SGD with momentum")
    parser.add_argument(
        "--data", type=Path, default=None, help="folder of Fashion-MNIST; random pictures without"
    )
    parser.add_argument("--test-every", type=int, default=0, help="steps between tests; never without")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--pause", type=float, default=0, help="milliseconds that each step sleeps")
    parser.add_argument("--hook", default="none", help="of the twin by hand: none, fp16 or powersgd")
    return parser.parse_args()


def sent_bytes() -> int:
    """Return the bytes sent by all cards of this host or network namespace."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[8]) for line in lines)


def pause(milliseconds: float) -> None:
    """Stand for the time of an accelerator; on a slow host twice as long."""
    if milliseconds:
        time.sleep(milliseconds / 1000 * float(os.environ.get("RONDE_BENCH_SLOWER", "1")))


def pictures(folder: Path | None, part: str) -> TensorDataset:
    if folder is None:
        return TensorDataset(torch.randn(_DRAWN, 784), torch.randint(10, (_DRAWN,)))
    images = _idx(folder / f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784)
    labels = _idx(folder / f"{part}-labels-idx1-ubyte.gz", 8)
    scaled = (images.astype(np.float32) / 255 - 0.286) / 0.353
    return TensorDataset(torch.from_numpy(scaled), torch.from_numpy(labels.astype(np.int64)))


def _idx(path: Path, header: int) -> np.ndarray:
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)


def model(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def optimizer(args: argparse.Namespace, parameters) -> torch.optim.Optimizer:
    if args.adam:
        return torch.optim.Adam(parameters, lr=1e-3)
    return torch.optim.SGD(parameters, lr=args.lr, momentum=0.9)


def schedule(args: argparse.Namespace, of: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """A rate that stays, or falls on a line."""
    return torch.optim.lr_scheduler.LambdaLR(of, lambda step: 1 - step / args.steps if args.decay else 1.0)


class Clock:
    """Counts steps; the time of tests does not count."""

    def __init__(self, warm_up: int) -> None:
        self.warm_up, self.done, self.tested_s = warm_up, 0, 0.0
        self.begun, self.sent = time.perf_counter(), sent_bytes()
        self.accuracy: list[tuple[int, float]] = []

    def step(self) -> None:
        self.done += 1
        if self.done == self.warm_up:
            self.begun, self.tested_s, self.sent = time.perf_counter(), 0.0, sent_bytes()

    def test(self, net: nn.Module, data: TensorDataset) -> None:
        before = time.perf_counter()
        with torch.no_grad():
            right = 0
            for inputs, targets in zip(data.tensors[0].split(500), data.tensors[1].split(500), strict=True):
                right += int((net(inputs).argmax(1) == targets).sum())
        self.accuracy.append((self.done, right / len(data)))
        self.tested_s += time.perf_counter() - before

    def report(self) -> str:
        seconds = time.perf_counter() - self.begun - self.tested_s
        return json.dumps({
            "steps": self.done - self.warm_up, "seconds": seconds,
            "sent": sent_bytes() - self.sent, "accuracy": self.accuracy,
        })  # fmt: skip
