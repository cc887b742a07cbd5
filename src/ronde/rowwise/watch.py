"""The state of an observed call."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from ronde.rng.draws import Draw
from ronde.rowwise.labels import Drawn, Label, Mark, Marks, Mixed, Order, Orders, Relative, along
from ronde.rowwise.operation import ObservedOperation
from ronde.rowwise.rows_int import RowCounts
from ronde.rowwise.sequence import Sequence, step_of
from ronde.rowwise.undo import Undo
from ronde.rowwise.verdict import MixesRows, meet

__all__ = ["Away", "CallWatch", "Ranks"]


class Away(enum.Enum):
    """The reason why operations are not analysed."""

    TRIED = "they are not the model's: something is tried, or rows are compared"
    NOTED = "they are parts of something that is looked at as one operation"
    JOINED = "they are parts of what ranks do together"
    ENDED = "the call has ended"


class Ranks(Protocol):
    """The run's operations that an observation needs.

    Attributes:
        rows: rows of the whole batch.
        mine: rows of this rank, at least 2.
    """

    rows: int
    mine: int

    def draw(self, func: Any, args: Any, kwargs: Any, draw: Draw) -> Any:
        """Draw random rows as on one device, and return this rank's."""
        ...

    def agree(self, problem: str) -> str:
        """Return the first problem of any rank, "" without one. Collective."""
        ...

    def normalizes(self, func: Any) -> bool:
        """Return whether an `autograd.Function` is a batch norm over all ranks' rows."""
        ...

    def looks_up(self, func: Any) -> bool:
        """Return whether an `autograd.Function` looks up embedding-table rows by ids."""
        ...

    def catches(self) -> bool:
        """Return whether the model itself would catch an exception of the running operation."""
        ...


@dataclasses.dataclass(slots=True)
class CallWatch:
    """The state of an observed call.

    Attributes:
        forms: analysis of the results, by form of operation.
        draws: random operations on rows, in order.
        away: reason why operations are not analysed; None if they are.
        checking: whether the running function reads values only to check them.
        makes_noise: whether the running function draws noise for each row.
        drawn: axis and order of rows of the next random operation, if its size has a number of rows.
        counted: numbers of rows that the running function was given.
        joint, batchless: whether rows, or other tensors, were normalized over the batch.
        foreign: memory of leaves with a gradient that were used and are not the module's.
        failed: exception of an operation on a part of the rows.
    """

    counts: RowCounts
    ranks: Ranks
    undo: Undo
    orders: Orders
    marks: Marks = dataclasses.field(default_factory=Marks)
    sequence: Sequence = dataclasses.field(default_factory=Sequence)
    forms: dict[Any, Any] = dataclasses.field(default_factory=dict)
    draws: list[Draw] = dataclasses.field(default_factory=list)
    away: Away | None = None
    checking: bool = False
    makes_noise: bool = False
    drawn: tuple[int, Order] | None = None
    counted: frozenset[int] = frozenset()
    joint: bool = False
    batchless: bool = False
    foreign: set[int] = dataclasses.field(default_factory=set)
    failed: Exception | None = None
    _generators: dict[torch.device, torch.Generator] = dataclasses.field(default_factory=dict)

    @contextmanager
    def looking_away(self, kind: Away = Away.TRIED) -> Iterator[None]:
        """Run operations inside the `with` block without analysis."""
        before, self.away = self.away, kind
        try:
            yield
        finally:
            self.away = before

    def generator(self, device: torch.device) -> torch.Generator:
        """Return the generator of random values for trial runs."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(0)
        return self._generators[device]

    def note(self, func: Any, args: Any, kwargs: Any) -> None:
        """Record an operation for comparison with later calls."""
        if (step := step_of(self.marks, func, args, kwargs)) is not None:
            self.sequence.steps.append(step)

    def of(self, tensor: torch.Tensor) -> Mark | None:
        return self.marks.of(tensor)

    def rows_of(self, tensor: torch.Tensor) -> Label | Relative | Mixed | None:
        """Return a tensor's mark if it depends on rows; None else."""
        mark = self.marks.of(tensor)
        return None if isinstance(mark, Drawn) else mark

    def put(self, tensor: torch.Tensor, mark: Mark | None) -> None:
        self.marks.put(tensor, mark)

    def overwrite(self, op: ObservedOperation, target: torch.Tensor, mark: Mark | None) -> None:
        """Mark a tensor after a write; refuse if other views see it."""
        before = op.mark(target)
        if type(before) is not Label or type(mark) is not Label:
            covered = target.numel() * target.element_size() >= target.untyped_storage().nbytes()
            if before is not mark and (not covered or self.marks.lie_beside(target)):
                raise MixesRows(meet(op.facts.name))
        self.marks.put(target, mark)

    def made(self, results: Iterable[torch.Tensor]) -> None:
        """Record the results' memory as new."""
        for each in results:
            self.marks.made(each)

    def label(self, tensor: torch.Tensor, order: Order, axis: int) -> Label:
        """Label a tensor with rows along an axis."""
        made = along(order, axis, tensor.shape)
        self.marks.put(tensor, made)
        return made
