"""What is known during an observed call."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from ronde.rng.draws import Draw
from ronde.rowwise.labels import Drawn, Label, Mark, Marks, Mixed, Order, Orders, Relative, along
from ronde.rowwise.operation import Operation
from ronde.rowwise.rows import Counts
from ronde.rowwise.sequence import Sequence, step_of
from ronde.rowwise.undo import Undo
from ronde.rowwise.verdict import MixesRows, meet

__all__ = ["Away", "Ranks", "Watch"]


class Away(enum.Enum):
    """Why operations are not looked at."""

    TRIED = "they are not the model's: something is tried, or rows are compared"
    NOTED = "they are parts of something that is looked at as one operation"
    JOINED = "they are parts of what ranks do together"
    ENDED = "the call has ended"


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
        """Whether an `autograd.Function` is a batch norm with statistics of all ranks."""
        ...

    def looks_up(self, func: Any) -> bool:
        """Whether it looks up rows of an embedding table by their ids."""
        ...

    def catches(self) -> bool:
        """Whether the model itself would catch what the operation under way raises."""
        ...


@dataclasses.dataclass(slots=True)
class Watch:
    """What is known during an observed call.

    Attributes:
        forms: of operations that were tried: what was found of their results.
        draws: random operations on rows, in order.
        away: why operations are carried out without being looked at; None where they are looked at.
        checking: what is under way looks at values only to check them.
        makes_noise: what is under way makes it for each row.
        drawn: where the rows of the next random operation lie, when sizes tell.
        counted: numbers of rows that the function under way was given.
        joint, batchless: rows were, or something else was, normalized over the batch.
        foreign: the memory of leaves with a gradient that were used and are not the module's.
        failed: what an operation raised on a part of the rows.
    """

    counts: Counts
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
        """Inside, operations are carried out without being looked at."""
        before, self.away = self.away, kind
        try:
            yield
        finally:
            self.away = before

    def generator(self, device: torch.device) -> torch.Generator:
        """Of random values to try operations on."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(0)
        return self._generators[device]

    def note(self, func: Any, args: Any, kwargs: Any) -> None:
        """Let later calls be compared by an operation."""
        if (step := step_of(self.marks, func, args, kwargs)) is not None:
            self.sequence.steps.append(step)

    def of(self, tensor: torch.Tensor) -> Mark | None:
        return self.marks.of(tensor)

    def rows_of(self, tensor: torch.Tensor) -> Label | Relative | Mixed | None:
        """What is known of a tensor that has to do with rows."""
        mark = self.marks.of(tensor)
        return None if isinstance(mark, Drawn) else mark

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
