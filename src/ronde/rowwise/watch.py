"""What is known during an observed call."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from ronde.boundary.randomness.draws import Draw
from ronde.rowwise.forms import Forms
from ronde.rowwise.labels import Label, Mark, Marks, along
from ronde.rowwise.mixes_rows import MixesRows, meet
from ronde.rowwise.operation import Operation, tensors
from ronde.rowwise.order import Order, Orders
from ronde.rowwise.rows import Counts
from ronde.rowwise.undo import Undo

__all__ = ["Away", "Ranks", "Watch"]


class Away(enum.Enum):
    """Why operations are not looked at.

    Attributes:
        TRIED: they are not the model's, but of a trial, or compare rows.
        NOTED: they are parts of something that is looked at as one operation.
        JOINED: they normalize by statistics of the whole batch.
        ENDED: the call has ended.
    """

    TRIED = enum.auto()
    NOTED = enum.auto()
    JOINED = enum.auto()
    ENDED = enum.auto()


class Ranks(Protocol):
    """What is asked of the run in which a call is observed.

    Attributes:
        rows: of the whole batch.
        mine: those here, at least 2.
    """

    rows: int
    mine: int

    def draw(self, func: Any, args: Any, kwargs: Any, draw: Draw) -> Any:
        """Carry out a random operation whose result has rows: as one device, of which our rows are taken."""
        ...

    def agree(self, problem: str) -> str:
        """A collective: the first problem that a rank has, "" where none has one."""
        ...

    def normalizes(self, func: Any) -> bool:
        """Whether it is a batch norm with statistics of all ranks: an operation or an `autograd.Function`."""
        ...


@dataclasses.dataclass(slots=True)
class Trial:
    """While functions of the script's are tried.

    Attributes:
        undo: the way back.
        marks: knows what memory is new.
    """

    undo: Undo
    marks: Marks = dataclasses.field(default_factory=Marks)

    def see(self, op: Operation) -> None:
        """An operation is about to be carried out."""
        self.undo.keep(op.written, self.marks)

    def seen(self, op: Operation, result: Any) -> None:
        """It has been."""
        if not op.facts.is_view and not op.facts.written:
            for each in tensors((result,)):
                self.marks.made(each)

    def changed(self) -> str:
        """What is changed: a tensor, or something that holds one now."""
        return self.undo.changed_tensor()


@dataclasses.dataclass(slots=True)
class Watch:
    """What is known during an observed call.

    Attributes:
        forms: of operations that were tried.
        draws: random operations on rows, in order.
        away: why operations are carried out without being looked at; None where they are looked at.
        checking: what is under way looks at values only to check them.
        trial: while functions of the script's are tried.
        makes_noise: what is under way makes it for each row.
        drawn: where the rows of the next random operation lie, when sizes tell.
        began: nodes of gradient graphs of the call are not older than this.
        joint, batchless: rows were, or something else was, normalized over the batch.
        foreign: leaves with a gradient were used that are not the module's.
        drew: something was drawn.
    """

    counts: Counts
    ranks: Ranks
    undo: Undo
    orders: Orders
    marks: Marks = dataclasses.field(default_factory=Marks)
    forms: Forms = dataclasses.field(default_factory=Forms)
    draws: list[Draw] = dataclasses.field(default_factory=list)
    away: Away | None = None
    checking: bool = False
    trial: Trial | None = None
    makes_noise: bool = False
    drawn: tuple[int, Order] | None = None
    began: int = dataclasses.field(default_factory=torch.autograd._get_sequence_nr)
    joint: bool = False
    batchless: bool = False
    foreign: bool = False
    drew: bool = False
    _generators: dict[torch.device, torch.Generator] = dataclasses.field(default_factory=dict)

    @contextmanager
    def looking_away(self, kind: Away = Away.TRIED) -> Iterator[None]:
        """Inside, operations are carried out without being looked at."""
        before, self.away = self.away, kind
        try:
            yield
        finally:
            self.away = before

    @contextmanager
    def trying(self) -> Iterator[Trial]:
        """Inside, functions of the script's are tried; what they change is as it was, behind."""
        before, trial = self.trial, Trial(self.undo.anew())
        with self.looking_away():
            self.trial = trial
            try:
                yield trial
            finally:
                self.trial = before
                trial.undo.unwind()

    def generator(self, device: torch.device) -> torch.Generator:
        """Of random values to try operations on."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(0)
        return self._generators[device]

    def of(self, tensor: torch.Tensor) -> Mark | None:
        return self.marks.of(tensor)

    def put(self, tensor: torch.Tensor, mark: Mark | None) -> None:
        self.marks.put(tensor, mark)

    def overwrite(self, op: Operation, target: torch.Tensor, mark: Mark | None) -> None:
        """Know this of a tensor that an operation has written to, whose memory others may see."""
        before = op.mark(target)
        if type(before) is not Label or type(mark) is not Label:
            covered = target.numel() * target.element_size() >= target.untyped_storage().nbytes()
            if before is not mark and (not covered or self.marks.lie_beside(target)):
                raise MixesRows(meet(op.facts.name))
        self.marks.put(target, mark)

    def made(self, results: Iterable[torch.Tensor]) -> None:
        """Their memory is new."""
        for each in results:
            self.marks.made(each)

    def label(self, tensor: torch.Tensor, order: Order, axis: int) -> Label:
        """Know of a tensor that it has these rows."""
        made = along(order, axis, tensor.shape)
        self.marks.put(tensor, made)
        return made
