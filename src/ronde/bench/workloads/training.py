"""The training loop of all scripts; each library has an adapter."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from catalogue import CATALOGUE
from drawn import DrawnBatches
from stopwatch import Stopwatch, value
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler
from workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    """Arguments of a script.

    Attributes:
        name: the name of the workload.
        batch_size: samples of the global batch.
        warm_up, total: steps before the clock starts, and all steps.
        trajectory: whether the loss of every step is reported, for tests.
        device: the device of the training.
    """

    name: str
    workload: Workload
    batch_size: int
    warm_up: int
    total: int
    trajectory: bool
    device: str

    @property
    def samples(self) -> int:
        return self.batch_size * self.total


def arguments(*, ranks: int | None = None) -> Arguments:
    """Read the command line of a script, or of a twin on `ranks` ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=CATALOGUE)
    parser.add_argument("--steps", type=int, help="timed steps, instead of the workload's own number")
    parser.add_argument("--warm-up", type=int, help="steps before the clock starts, likewise")
    parser.add_argument("--scale", type=int, default=1, help="how many of the workload's batches make one")
    parser.add_argument("--trajectory", action="store_true", help="report the loss of every step")
    if ranks is None:
        parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    words = parser.parse_args()
    workload = CATALOGUE[words.workload]
    warm_up = workload.warm_up if words.warm_up is None else words.warm_up
    batch_size = workload.batch_size * words.scale
    if batch_size % (ranks or 1):
        # Equal slices are what makes the mean of the ranks' means the batch's mean.
        parser.error(f"a batch of {batch_size} cannot be cut into {ranks} equal slices")
    return Arguments(
        name=words.workload,
        workload=workload,
        batch_size=batch_size,
        warm_up=warm_up,
        total=warm_up + (workload.steps if words.steps is None else words.steps),
        trajectory=words.trajectory,
        device="cpu" if ranks else words.device,
    )


class Adapter:
    """A library's part of a training; this one is plain PyTorch on one device.

    Attributes:
        rank, ranks: the number of this process, and of all.
        log_every: steps between printed losses; None prints none.
    """

    rank, ranks = 0, 1
    log_every: int | None = 10

    def arguments(self) -> Arguments:
        """Read the command line."""
        return arguments()

    def batches(self, data: Any, args: Arguments) -> Iterable[tuple[Tensor, Tensor]]:
        """Return this rank's part of each global batch."""
        if isinstance(data, DrawnBatches):
            return (data.draw(args.batch_size, rank=self.rank, ranks=self.ranks) for _ in range(args.total))
        return self.loader(data, args)

    def loader(self, data: Any, args: Arguments) -> Any:
        """Return the loader of data that is not drawn."""
        # The order of DistributedSampler's ranks together, so that all contenders see the same batches.
        order = RandomSampler(data, generator=torch.Generator().manual_seed(0))
        return DataLoader(data, args.batch_size, sampler=order)

    def prepare(self, workload: Workload, args: Arguments) -> tuple[Any, Any]:
        """Return the model and its optimizer."""
        model = workload.model().to(args.device)
        return model, workload.optimizer(model.parameters())

    def step(self, workload: Workload, model: Any, optimizer: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        """Train on a batch, and return its loss."""
        loss = workload.loss(model(inputs), targets)
        optimizer.zero_grad()
        self.backward(loss)
        optimizer.step()
        return loss

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients."""
        loss.backward()

    def mean(self, loss: Tensor) -> float:
        """Return the loss of the global batch; a collective on several ranks."""
        return value(loss)

    def elapsed(self, seconds: float) -> float:
        """Return the time of the run, from that of this process."""
        return seconds

    def close(self) -> None:
        """Leave the group."""


class Twin(Adapter):
    """A library's part on several ranks, on the CPU."""

    def arguments(self) -> Arguments:
        """Read the command line of a rank."""
        return arguments(ranks=self.ranks)


def train(make: Callable[[], Adapter]) -> None:
    """Train the workload of the command line, and print its figures."""
    adapter = make()
    args = adapter.arguments()
    workload = args.workload
    torch.manual_seed(0)
    data = workload.data(args.samples)
    model, optimizer = adapter.prepare(workload, args)
    stopwatch = Stopwatch(
        args.warm_up,
        device=args.device,
        speaks=adapter.rank == 0,
        mean=adapter.mean,
        elapsed=adapter.elapsed,
        log_every=adapter.log_every,
        reads_loss=workload.reads_loss,
        trajectory=args.trajectory,
    )
    for inputs, targets in adapter.batches(data, args):
        inputs, targets = inputs.to(args.device), targets.to(args.device)
        stopwatch.step(adapter.step(workload, model, optimizer, inputs, targets))
    stopwatch.report(args.name, args.batch_size)
    adapter.close()
