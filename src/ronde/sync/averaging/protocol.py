"""Base class of model averaging protocols, and helpers for flat parameters."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.patching.torch_internals import foreach_add_, foreach_copy_
from ronde.sync.parameter_name import parameter_name

__all__ = ["Averaging", "SavePoints", "add_parts", "average_gradients", "flats_of", "members_of"]

_RUN_BYTES = 1 << 22


class SavePoints(Protocol):
    """Agreement on checkpoints of ranks that train by themselves.

    Each rank is saved at its next step after an average.

    Attributes:
        agreed: whether this rank will be saved where its next step begins; before that no average begins.
    """

    agreed: bool

    def meet(self) -> None:
        """Agree on a checkpoint when all ranks have made the same steps. A collective."""
        ...

    def wishes(self) -> tuple[bool, bool]:
        """Return whether this rank wants a checkpoint, and whether it is to end."""
        ...

    def hear(self, wanting: int, ending: int, ended: int) -> None:
        """Receive the counts of ranks that want a checkpoint, end, and have ended."""
        ...

    def end(self) -> None:
        """Note that this rank is at the end of its script.

        An agreement is cancelled then on all ranks.
        """
        ...


class Averaging:
    """Abstract protocol with hooks at every step of every optimizer.

    All ranks make the same steps of the same optimizers.

    Args:
        comm: process group of its own.

    Attributes:
        held: function from parameters to this rank's blocks of them; the identity for whole parameters.
        agreed: function that returns whether all ranks with blocks of one model say yes.
        averages: number of averages so far.
        cuts: agreement on checkpoints, or None.
        last_loss: value at which this rank's last backward began; None before the first.
    """

    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        self.held: Callable[[list[torch.Tensor]], list[torch.Tensor]] = lambda tensors: tensors
        self.agreed: Callable[[bool], bool] = lambda yes: yes
        self.averages = 0
        self.cuts: SavePoints | None = None
        self.last_loss: torch.Tensor | None = None
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def steps_of(self, optimizer: Any) -> int:
        """Return the number of steps of an optimizer."""
        return self._steps.get(optimizer, 0)

    def members_of(self, optimizer: Any) -> list[torch.Tensor]:
        """Return this rank's parts of the averaged parameters."""
        return self.held(members_of(optimizer))

    def before_step(self, optimizer: Any) -> None:
        """Run the protocol's part before an optimizer's step, with gradients computed."""
        if optimizer not in self._steps:
            self._steps[optimizer] = 0
            self.begin(optimizer)
        self.prepare(optimizer, self._steps[optimizer])

    def after_step(self, optimizer: Any) -> None:
        self._steps[optimizer] += 1
        self.complete(optimizer, self._steps[optimizer])

    @torch.no_grad()
    def begin(self, optimizer: Any) -> None:
        """Broadcast rank 0's parameters before the first step of an optimizer."""
        self.begin_alike(self.members_of(optimizer))

    @torch.no_grad()
    def begin_alike(self, members: Sequence[torch.Tensor]) -> None:
        """Give every rank the parameters of rank 0. A collective."""
        for flat, some in flats_of(members):
            self.comm.broadcast(flat)
            _write(some, flat)

    def prepare(self, optimizer: Any, step: int) -> None:
        """Act before a step of an optimizer, its number `step` from 0."""

    def complete(self, optimizer: Any, step: int) -> None:
        """Act after a step of an optimizer, its number `step` from 1."""

    def poll(self) -> None:
        """Apply results from other ranks, between two steps."""

    def finish(self) -> None:
        """Act at the end of the script."""

    def met(self) -> None:
        """Agree on checkpoints, where all ranks have made the same steps."""
        if self.cuts is not None:
            self.cuts.meet()

    @property
    def optimizers(self) -> list[Any]:
        """Optimizers that have stepped, in the order of their first steps."""
        return list(self._steps)

    def state_of(self, optimizer: Any) -> dict[str, Any]:
        """Return this rank's protocol state of an optimizer, for a checkpoint.

        The optimizer's own state and the parameters are saved elsewhere.
        """
        return {"steps": self._steps[optimizer]}

    def go_on(self, optimizer: Any, state: dict[str, Any]) -> None:
        """Restore the same rank's `state_of` for an optimizer before its first step."""
        self._steps[optimizer] = state["steps"]

    def account(self) -> str:
        """Return a sentence for the summary."""
        times = "once" if self.averages == 1 else f"{self.averages} times"
        return f"parameters averaged {times}, {self.comm.sent_bytes / 1e6:.3g} MB given away by this rank"


def members_of(optimizer: Any) -> list[torch.Tensor]:
    """Return an optimizer's averaged parameters: all of a floating-point dtype.

    Raises:
        UsageError: a parameter is complex.
    """
    found = [each for group in optimizer.param_groups for each in group["params"]]
    if any(each.is_complex() for each in found):
        raise UsageError(
            "a parameter of a complex dtype is not averaged between ranks that train by "
            "themselves; use --plan ddp [R290]"
        )
    return [each for each in found if each.is_floating_point()]


@torch.no_grad()
def flats_of(members: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Copy tensors end to end, one flat tensor per dtype and device.

    Returns:
        Pairs of a flat copy and the tensors in it.
    """
    kinds = dict.fromkeys((each.dtype, each.device) for each in members)
    alike = [[each for each in members if (each.dtype, each.device) == kind] for kind in kinds]
    return [(torch.cat([each.detach().reshape(-1) for each in some]), some) for some in alike]


@torch.no_grad()
def add_parts(members: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    """Add the pieces of `flat`, which lie end to end, to tensors."""
    foreach_add_([each.detach() for each in members], _parts(members, flat))


@torch.no_grad()
def average_gradients(comm: Comm, members: Sequence[torch.Tensor]) -> None:
    """Average gradients over ranks. A collective.

    A gradient that a rank has not computed counts as zero.

    Raises:
        UsageError: a gradient is sparse.
    """
    with torch.inference_mode(False):  # tensors made in inference mode could not be changed outside of it
        _average_gradients(comm, members)


def _average_gradients(comm: Comm, members: Sequence[torch.Tensor]) -> None:
    sparse = (each for each in members if each.grad is not None and each.grad.layout != torch.strided)
    if (found := next(sparse, None)) is not None:
        raise UsageError(
            f"during the warm-up ranks average dense gradients only, and that of {parameter_name(found)} is "
            f"sparse; use sparse=False, or leave warm-up out [R291]"
        )
    there = comm.votes([each.grad is not None for each in members])
    computed = [each for each, count in zip(members, there, strict=True) if count]
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in computed]
    for some in _runs(gradients):
        for flat, parts in flats_of(some):
            comm.all_reduce(flat).div_(comm.world_size)
            _write(parts, flat)
    for each, gradient in zip(computed, gradients, strict=True):
        each.grad = gradient


def _runs(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Split tensors into runs that are copied together.

    A copy of all of them would be as large as the model.
    """
    run: list[torch.Tensor] = []
    for each in tensors:
        if run and sum(one.nbytes for one in run) + each.nbytes > _RUN_BYTES:
            yield run
            run = []
        run.append(each)
    if run:
        yield run


@torch.no_grad()
def _write(members: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    foreach_copy_([each.detach() for each in members], _parts(members, flat))


def _parts(members: Sequence[torch.Tensor], flat: torch.Tensor) -> list[torch.Tensor]:
    ends = list(itertools.accumulate((each.numel() for each in members), initial=0))
    return [
        flat[begin:end].view(each.shape) for begin, end, each in zip(ends, ends[1:], members, strict=False)
    ]
