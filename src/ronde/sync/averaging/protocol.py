"""What every protocol that averages parameters has, and how the parameters of an optimizer travel."""

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

__all__ = ["Averaging", "Cuts", "add_parts", "average_gradients", "flats_of", "members_of"]

_RUN_BYTES = 1 << 22


class Cuts(Protocol):
    """Where ranks that train by themselves are saved together: each at its next step after an average.

    Attributes:
        agreed: this rank is to be saved where its next step begins; before that no average begins.
    """

    agreed: bool

    def meet(self) -> None:
        """Agree, where all ranks have made the same steps. A collective."""
        ...

    def wishes(self) -> tuple[bool, bool]:
        """Whether this rank wants a checkpoint, and whether it is to end."""
        ...

    def hear(self, wanting: int, ending: int, ended: int) -> None:
        """Hear how many ranks want a checkpoint, are to end, and have come to the end of their script."""
        ...

    def end(self) -> None:
        """This rank has come to the end of its script: what is agreed upon is not done, by anybody."""
        ...


class Averaging:
    """Hears of every step of every optimizer; all ranks make the same steps of the same optimizers.

    Args:
        comm: a group of its own.

    Attributes:
        held: what this rank has of parameters, where it has blocks of them.
        agreed: whether all ranks that have blocks of one model say yes.
        averages: how many there were.
        cuts: when ranks are saved; None where they are not.
        last_loss: the number from which this rank's last backward began; None before it.
    """

    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        self.held: Callable[[list[torch.Tensor]], list[torch.Tensor]] = lambda tensors: tensors
        self.agreed: Callable[[bool], bool] = lambda yes: yes
        self.averages = 0
        self.cuts: Cuts | None = None
        self.last_loss: torch.Tensor | None = None
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def steps_of(self, optimizer: Any) -> int:
        """How often an optimizer has stepped."""
        return self._steps.get(optimizer, 0)

    def members_of(self, optimizer: Any) -> list[torch.Tensor]:
        """This rank's parts of the averaged parameters."""
        return self.held(members_of(optimizer))

    def before_step(self, optimizer: Any) -> None:
        """Gradients are there."""
        if optimizer not in self._steps:
            self._steps[optimizer] = 0
            self.begin(optimizer)
        self.prepare(optimizer, self._steps[optimizer])

    def after_step(self, optimizer: Any) -> None:
        self._steps[optimizer] += 1
        self.complete(optimizer, self._steps[optimizer])

    @torch.no_grad()
    def begin(self, optimizer: Any) -> None:
        """An optimizer is about to step for the first time: all ranks begin with rank 0's parameters."""
        self.begin_alike(self.members_of(optimizer))

    @torch.no_grad()
    def begin_alike(self, members: Sequence[torch.Tensor]) -> None:
        """Give every rank the parameters of rank 0. A collective."""
        for flat, some in flats_of(members):
            self.comm.broadcast(flat)
            _write(some, flat)

    def prepare(self, optimizer: Any, step: int) -> None:
        """An optimizer is about to step, after `step` steps."""

    def complete(self, optimizer: Any, step: int) -> None:
        """It has stepped, for the time of that number."""

    def poll(self) -> None:
        """Take in between two steps what has come from other ranks."""

    def finish(self) -> None:
        """The script is at its end."""

    def met(self) -> None:
        """All ranks have made the same steps: here they may agree to be saved."""
        if self.cuts is not None:
            self.cuts.meet()

    @property
    def optimizers(self) -> list[Any]:
        """Those that have stepped, in the order in which they first did."""
        return list(self._steps)

    def state_of(self, optimizer: Any) -> dict[str, Any]:
        """What this rank needs to go on with an optimizer, but for its state and its parameters."""
        return {"steps": self._steps[optimizer]}

    def go_on(self, optimizer: Any, state: dict[str, Any]) -> None:
        """Take over what the same rank's `state_of` gave, for an optimizer that has not stepped yet."""
        self._steps[optimizer] = state["steps"]

    def account(self) -> str:
        """What a summary says."""
        times = "once" if self.averages == 1 else f"{self.averages} times"
        return f"parameters averaged {times}, {self.comm.sent_bytes / 1e6:.3g} MB given away by this rank"


def members_of(optimizer: Any) -> list[torch.Tensor]:
    """The parameters that are averaged: those of a floating-point dtype.

    Raises:
        UsageError: for complex ones.
    """
    found = [each for group in optimizer.param_groups for each in group["params"]]
    if any(each.is_complex() for each in found):
        raise UsageError(
            "a parameter of a complex dtype is not averaged between ranks that train by "
            "themselves; use --plan ddp"
        )
    return [each for each in found if each.is_floating_point()]


@torch.no_grad()
def flats_of(members: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Copies of tensors end to end, one for each dtype and device, and which tensors are in it."""
    kinds = dict.fromkeys((each.dtype, each.device) for each in members)
    alike = [[each for each in members if (each.dtype, each.device) == kind] for kind in kinds]
    return [(torch.cat([each.detach().reshape(-1) for each in some]), some) for some in alike]


@torch.no_grad()
def add_parts(members: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    """Add to tensors what lies end to end in `flat`."""
    foreach_add_([each.detach() for each in members], _parts(members, flat))


@torch.no_grad()
def average_gradients(comm: Comm, members: Sequence[torch.Tensor]) -> None:
    """Each gradient becomes the mean over ranks; one that a rank has not computed counts as nought.

    Raises:
        UsageError: for sparse gradients.
    """
    with torch.inference_mode(False):  # gradients made here are changed outside of it as well
        _average_gradients(comm, members)


def _average_gradients(comm: Comm, members: Sequence[torch.Tensor]) -> None:
    sparse = (each for each in members if each.grad is not None and each.grad.layout != torch.strided)
    if (found := next(sparse, None)) is not None:
        raise UsageError(
            f"during the warm-up ranks average dense gradients only, and that of {parameter_name(found)} is "
            f"sparse; use sparse=False, or leave warm-up out"
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
    """Tensors that follow one another and are copied together: a copy of all would be as large as a model."""
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
