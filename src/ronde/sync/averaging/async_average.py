"""Asynchronous model averaging, in the background of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ronde.comm.lane import Lane, Task
from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.sync.averaging.protocol import Averaging, add_parts, average_gradients, flats_of

__all__ = ["AsyncAverage"]

# By its second step every optimizer of a script has stepped once.
_FIRST = 2


class AsyncAverage(Averaging):
    """Average parameters asynchronously, without waiting for other ranks.

    On rank r, with U the script's optimizer: w_r = U(w_r, g_r), and in the background, again and again,

        c_r = w_r, a copy between two steps;  m = 1/W sum over ranks of c_q;  w_r += m - c_r, between steps

    The n-th average is that of every rank's n-th copy, however many steps each has made: no rank waits.
    Source: Bagua's asynchronous model average. There the background thread writes under a lock; here the
    training thread takes the copy and adds the difference, after the first step that ends when an average has
    arrived. During a warm-up of K steps gradients are averaged, and all wait.

    A rank that has come to the end of its script keeps taking part, with unchanged parameters, until all
    ranks have.

    Args:
        warm_up: K.

    Attributes:
        schedule: numbers of this rank's steps at each average's copy, and at the addition of its difference.
    """

    def __init__(self, comm: Comm, *, warm_up: int = 0) -> None:
        super().__init__(comm)
        self._warm_up, self._first_average = warm_up, max(_FIRST, warm_up)
        self._optimizers: list[Any] = []
        self._lane = Lane("ronde-average")
        self._under_way: _Average | None = None
        self._averages_now = False
        self._finished = False
        self.schedule: list[list[int]] = []

    def begin(self, optimizer: Any) -> None:
        if self._averages_now:
            raise UsageError(
                "update=async-average averages the parameters of all optimizers at once, and one optimizer "
                "first stepped later than others; let all step in the first round, or use "
                "update=local,every=K [R288]"
            )
        self._optimizers.append(optimizer)
        members = self.members_of(optimizer)
        self._on_lane(lambda: self.begin_alike(members))

    def prepare(self, optimizer: Any, step: int) -> None:
        if step < self._warm_up:
            members = self.members_of(optimizer)
            self._on_lane(lambda: average_gradients(self.comm, members))

    def complete(self, optimizer: Any, step: int) -> None:
        if optimizer is not self._optimizers[-1]:
            return
        if step < self._first_average:
            if step < self._warm_up:
                self.met()
            return
        self._averages_now = True
        self.poll()

    def poll(self) -> None:
        if not self._averages_now:
            return
        step = self.steps_of(self._optimizers[-1])
        if self._under_way is not None:
            if not self.agreed(self._under_way.arrived):
                return
            self._add(step)
        if self.cuts is None or not self.cuts.agreed:
            self._send(step, at_end=False)

    @torch.no_grad()
    def _send(self, step: int, *, at_end: bool) -> None:
        members = [each for optimizer in self._optimizers for each in self.members_of(optimizer)]
        wishes = (False, False) if self.cuts is None else self.cuts.wishes()
        self._under_way = _Average(self._lane, self.comm, members, (*wishes, at_end))
        self.schedule.append([step])

    def _add(self, step: int) -> None:
        average = self._under_way
        assert average is not None
        average.add()
        self._under_way = None
        wanting, ending, ended = average.told
        self._finished = ended == self.comm.world_size
        self.averages += 1
        self.schedule[-1].append(step)
        if self.cuts is not None:
            self.cuts.hear(wanting, ending, ended)

    def finish(self) -> None:
        """Take part until every rank has come to its end."""
        if not self._averages_now:
            self._lane.close()
            return
        step = self.steps_of(self._optimizers[-1])
        while not self._finished:
            if self._under_way is None:
                self._send(step, at_end=True)
            self._add(step)
            if self.cuts is not None:
                self.cuts.end()
        self._lane.close()

    def go_on(self, optimizer: Any, state: dict[str, Any]) -> None:
        super().go_on(optimizer, state)
        self._optimizers.append(optimizer)
        self._averages_now = state["steps"] >= self._first_average

    def _on_lane(self, work: Any) -> None:
        """Run a collective on the background thread, in one order with all others."""
        self._lane.start(work).wait()


class _Average:
    """One average: this rank's copy, and the sum over ranks of all copies.

    Args:
        tells: flags that this rank sets; the average counts the ranks that set each.
    """

    def __init__(self, lane: Lane, comm: Comm, members: list[torch.Tensor], tells: Sequence[bool]) -> None:
        self._comm = comm
        self._copies = flats_of(members)
        self._sums = [flat.clone() for flat, _ in self._copies]
        self._told = torch.tensor(tells, dtype=torch.int32, device=comm.control_device)
        self._task: Task = lane.start(self._reduce)

    def _reduce(self) -> None:
        self._comm.all_reduce(self._told)
        for total in self._sums:
            self._comm.all_reduce(total).div_(self._comm.world_size)

    @property
    def arrived(self) -> bool:
        return self._task.done

    @torch.no_grad()
    def add(self) -> None:
        self._task.wait()
        for (copy, members), mean in zip(self._copies, self._sums, strict=True):
            add_parts(members, mean.sub_(copy))

    @property
    def told(self) -> list[int]:
        """Number of ranks that have set each flag."""
        return self._told.tolist()
