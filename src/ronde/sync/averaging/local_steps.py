"""Local SGD: ranks train by themselves, and average parameters every k steps."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.sync.averaging.protocol import Averaging, add_parts, average_gradients, flats_of

__all__ = ["LocalSteps", "next_interval"]

_LONGEST = 16


class LocalSteps(Averaging):
    """Average parameters every k steps.

    On rank r, with U the script's optimizer and its state, which stay the rank's own:

        w_r = U(w_r, g_r);  every k steps  w_r = 1/W sum over ranks of w_q

    Source: Stich, "Local SGD converges fast and communicates little", ICLR 2019; Paddle's LocalSGD. With a
    warm-up of K steps the first K are U(w, mean over ranks of g_q), from which all have the same parameters:
    post-local SGD (Lin et al., "Don't use large mini-batches, use local SGD", ICLR 2020). Adaptive: see
    `next_interval`.

    Args:
        every: k; the first one if adaptive.
        adaptive: whether k follows the loss.
        warm_up: K.
    """

    def __init__(self, comm: Comm, *, every: int, adaptive: bool = False, warm_up: int = 0) -> None:
        super().__init__(comm)
        self._first = every
        self._adaptive = adaptive
        self._warm_up = warm_up
        # By optimizer: the step of its last average, and k.
        self._last: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._begun: weakref.WeakKeyDictionary[Any, tuple[float, float]] = weakref.WeakKeyDictionary()

    def prepare(self, optimizer: Any, step: int) -> None:
        if step < self._warm_up:
            average_gradients(self.comm, self.members_of(optimizer))

    @torch.no_grad()
    def complete(self, optimizer: Any, step: int) -> None:
        last, interval = self._last.get(optimizer, (self._warm_up, self._first))
        if step <= self._warm_up:
            self.met()
        if step - last < interval:
            return
        loss = self._loss() if self._adaptive else 0.0
        for flat, members in flats_of(self.members_of(optimizer)):
            mean = self.comm.all_reduce(flat.clone()).div_(self.comm.world_size)
            add_parts(members, mean.sub_(flat))
        self.averages += 1
        if self._adaptive:
            interval = self._adapted(optimizer, loss)
        self._last[optimizer] = step, interval
        self.met()

    def _adapted(self, optimizer: Any, loss: float) -> int:
        total = torch.tensor([loss], dtype=torch.float64, device=self.comm.control_device)
        mean = self.comm.all_reduce(total).item() / self.comm.world_size
        rate = float(optimizer.param_groups[0]["lr"])
        first_loss, first_rate = self._begun.setdefault(optimizer, (mean, rate))
        return next_interval(self._first, first_rate, rate, first_loss, mean)

    def _loss(self) -> float:
        if self.last_loss is None:
            raise UsageError(
                "adaptive=true follows the loss on which backward is called, and this script's loss is not "
                "a single number; use update=local,every=K [R289]"
            )
        return float(self.last_loss)

    def state_of(self, optimizer: Any) -> dict[str, Any]:
        own = {"last": self._last.get(optimizer), "begun": self._begun.get(optimizer)}
        return {**super().state_of(optimizer), **own}

    def go_on(self, optimizer: Any, state: dict[str, Any]) -> None:
        super().go_on(optimizer, state)
        for known, value in ((self._last, state["last"]), (self._begun, state["begun"])):
            if value is not None:
                known[optimizer] = value


def next_interval(first: int, first_rate: float, rate: float, first_loss: float, loss: float) -> int:
    """Return the number of steps until the next average, from 1 to 16.

    k = ceil(sqrt(lr_0 F / (lr F_0) k_0)): fewer steps between averages as the loss falls. F is the mean over
    ranks of the loss at an average, F_0 at the first one. Source: Wang and Joshi, "Adaptive communication
    strategies", MLSys 2019, as Paddle's AdaptiveLocalSGD bounds it.
    """
    if first_loss <= 0 or loss < 0 or rate <= 0 or not math.isfinite(loss):
        return first
    return min(_LONGEST, max(1, math.ceil(math.sqrt(first_rate * loss / (rate * first_loss) * first))))
