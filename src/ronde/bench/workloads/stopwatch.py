"""Stopwatch of a training loop after its warm-up, which prints a line of figures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import torch
from torch import Tensor


def value(loss: Tensor) -> float:
    return loss.item()


class Stopwatch:
    """Call `step(loss)` behind each optimizer step; the clock starts when the warm-up is over.

    Args:
        warm_up: steps before the clock starts.
        device: `cuda` waits for the device where the clock is read.
        speaks: whether this process prints.
        mean: makes of a process's loss that of the global batch; a collective on the ranks of a twin.
        elapsed: makes of a process's seconds those of the run, where ranks do not wait for each other.
        log_every: number of steps between printed losses, as in training scripts; None for never.
        reads_loss: whether the loss is read at every step, as in scripts that print or sum it; in a twin each
            rank reads its own.
        trajectory: keep the loss of every step.
    """

    def __init__(
        self,
        warm_up: int,
        *,
        device: str = "cpu",
        speaks: bool = True,
        mean: Callable[[Tensor], float] = value,
        elapsed: Callable[[float], float] = float,
        log_every: int | None = 10,
        reads_loss: bool = False,
        trajectory: bool = False,
    ):
        self.warm_up, self.device, self.speaks = warm_up, device, speaks
        self.mean, self.elapsed = mean, elapsed
        self.log_every, self.reads_loss, self.trajectory = log_every, reads_loss, trajectory
        self.done, self.losses, self.last = 0, [], torch.tensor(0.0)
        self.start = self.stop = time.perf_counter()

    def step(self, loss: Tensor) -> None:
        self.last = loss
        if self.trajectory:
            self.losses.append(self.mean(loss))
        if self.reads_loss:
            loss.item()
        if self.log_every and self.done % self.log_every == 0:
            shown = loss.item()
            if self.speaks:
                print(f"step {self.done} loss {shown:.4f}")
        self.done += 1
        if self.done == self.warm_up:
            self._wait()
            self.start = time.perf_counter()
        self.stop = time.perf_counter()

    def report(self, workload: str, batch_size: int) -> None:
        """Print the measurement; every rank of a twin must call this."""
        self._wait()
        if self.device == "cuda":
            self.stop = time.perf_counter()
        seconds = self.elapsed(self.stop - self.start)
        loss = self.mean(self.last)  # by which runs prove that they trained alike
        if not self.speaks:
            return
        steps = self.done - self.warm_up
        line = {
            "workload": workload,
            "batch_size": batch_size,
            "samples_per_second": steps * batch_size / seconds,
            "steps": steps,
            "seconds": seconds,
            "loss": loss,
            "losses": self.losses,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if self.device == "cuda" else "cpu",
        }
        print("bench-line " + json.dumps(line), flush=True)

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
