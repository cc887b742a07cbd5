"""What a model carries out without data, on FakeTensors, and whether that is the same for several sizes.

An operation is told by what it does, by its numbers and by the tensors that it is given. A tensor is known
by where it comes from: it is a parameter, an argument, the result of an earlier operation. Else two layers of
one shape could stand in for each other.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ronde.tensor.memory import tensors

__all__ = ["Operation", "Operations", "Origins", "are_alike", "use_the_same"]

# So many entries of a tensor that a model makes of the host's numbers are compared.
_MOST = 1 << 20


class _Constant:
    """A tensor that is not the model's, and that no operation has given: made of numbers of the host."""

    def __init__(self, tensor: torch.Tensor, *, written: bool) -> None:
        self._tensor, self._written = tensor, written

    def is_like(self, other: Any, rows: int, others: int) -> bool:
        """Whether it stands for the same as another one does: as a plain number would."""
        if not isinstance(other, _Constant):
            return False
        mine, its = self._tensor, other._tensor
        if mine is its:
            return True
        alike = (mine.dtype, mine.dim()) == (its.dtype, its.dim())
        if not alike or self._written or mine.requires_grad or its.requires_grad:
            return False
        with _disable_current_modes():
            return _same_numbers(mine, its, rows, others)


def _same_numbers(mine: torch.Tensor, its: torch.Tensor, rows: int, others: int) -> bool:
    """Whether they hold the same numbers; whole ones may be sizes, and where there are more, any."""
    if mine.is_meta or its.is_meta or max(mine.numel(), its.numel()) > _MOST:
        return mine.shape == its.shape
    if mine.shape == its.shape:
        sizes = mine.numel() > 1 and not (mine.is_floating_point() or mine.is_complex() or _is_flag(mine))
        return torch.equal(mine, its) or (
            sizes and bool(((mine == its) | (mine * others == its * rows)).all())
        )
    if not mine.is_floating_point():
        return True
    return torch.equal(mine.unique(), its.unique())


def _is_flag(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.bool


class Origins:
    """Where tensors come from: a number for each, in the order in which a run comes by them.

    Args:
        known: what is there before the run, in an order that is the same for every run.
    """

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        self._numbers: dict[int, int] = {}
        self._held: list[torch.Tensor] = []  # so that ids stay what they are
        for tensor in known:
            self.add(tensor)
        self._first = len(self._held)

    def add(self, tensor: torch.Tensor) -> int:
        """Number a tensor, whose number stays what it is if it has one."""
        self._held.append(tensor)
        return self._numbers.setdefault(id(tensor), len(self._held))

    def of(self, tensor: torch.Tensor, *, written: bool = False) -> int | _Constant:
        number = self._numbers.get(id(tensor))
        if number is not None:
            return number
        if is_fake(tensor):  # something between two operations has made another object of it
            return self.add(tensor)
        self._held.append(tensor)
        return _Constant(tensor, written=written)

    def is_known(self, number: Any) -> bool:
        """Whether this is the number of what was there before the run."""
        return isinstance(number, int) and number <= self._first


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """What is carried out.

    Attributes:
        func: the operation, or what else is done with values.
        fixed: arguments that stand for themselves, each with its place.
        sizes: integers that are sizes, dimensions or indices.
        given: where its tensors come from, each with its place.
        known: of these, numbers of what was there before the run.
        shapes: of its results.
    """

    func: Any
    fixed: tuple[Any, ...]
    sizes: tuple[int, ...] = ()
    given: tuple[Any, ...] = ()
    known: frozenset[int] = frozenset()
    shapes: tuple[tuple[int, ...], ...] = ()


class Operations(TorchDispatchMode):
    """Notes what is carried out."""

    def __init__(self, origins: Origins) -> None:
        super().__init__()
        self._origins = origins
        self.seen: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        noted = self._noted(func, args, kwargs)
        result = func(*args, **kwargs)
        found = tensors(result)
        for each in found:
            self._origins.add(each)
        self.seen.append(dataclasses.replace(noted, shapes=tuple(tuple(each.shape) for each in found)))
        return result

    def _noted(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Operation:
        fixed: list[Any] = []
        sizes: list[int] = []
        given: list[Any] = []
        for place, value in [*enumerate(args), *kwargs.items()]:
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, torch.Tensor):
                    given += [place, self._origins.of(item, written=_is_written(func, place))]
                elif isinstance(item, int) and not isinstance(item, bool) and _is_size(func, place):
                    sizes.append(item)
                elif not isinstance(item, torch.Generator):
                    fixed += [place, item]
        if func is torch.ops.aten.lift_fresh.default and args[0].numel() == 1:
            fixed.append(_number_in(args[0]))
        known = frozenset(filter(self._origins.is_known, given[1::2]))
        return Operation(func, tuple(fixed), tuple(sizes), tuple(given), known)


@functools.lru_cache(maxsize=4096)
def _is_size(func: Any, argument: int | str) -> bool:
    """Whether an integer given as this argument is a size, a dimension or an index: no number to count with.

    Args:
        argument: the number of a positional argument, the name of another.
    """
    if func.overloadpacket is torch.ops.aten.arange:
        return True
    kind = str(_schema_of(func, argument).type)
    return kind not in ("number", "Optional[number]", "Tensor", "Optional[Tensor]")


@functools.lru_cache(maxsize=4096)
def _is_written(func: Any, argument: int | str) -> bool:
    written = _schema_of(func, argument).alias_info
    return written is not None and written.is_write


def _schema_of(func: Any, argument: int | str) -> Any:
    known = func._schema.arguments
    return known[argument] if isinstance(argument, int) else next(a for a in known if a.name == argument)


def _number_in(tensor: torch.Tensor) -> Any:
    """What `torch.tensor` has made a tensor of."""
    with _disable_current_modes():
        return None if is_fake(tensor) or tensor.device.type == "meta" else tensor.item()


def are_alike(runs: Mapping[int, Sequence[Operation]]) -> bool:
    """Whether the same was carried out at each of these sizes, which `runs` are by.

    Every integer that is a size must be the same in all, or grow as the rows do; results may be longer by so
    many entries that are no rows.
    """
    if len({len(operations) for operations in runs.values()}) > 1:
        return False
    rows = list(runs)
    return all(_is_one(rows, each) for each in zip(*runs.values(), strict=True))


def _is_one(rows: list[int], runs: tuple[Operation, ...]) -> bool:
    """Whether operations, on so many rows each, are the same."""
    first = runs[0]
    for others, other in zip(rows, runs, strict=True):
        if (first.func, first.fixed, len(first.sizes)) != (other.func, other.fixed, len(other.sizes)):
            return False
        if not _are_given_alike(first.given, other.given, rows[0], others):
            return False
        if [len(shape) for shape in first.shapes] != [len(shape) for shape in other.shapes]:
            return False
    sizes = zip(*(run.sizes for run in runs), strict=True)
    shapes = zip(*([size for shape in run.shapes for size in shape] for run in runs), strict=True)
    return all(_grows(rows, each) for each in sizes) and all(_grows(rows, each, by=True) for each in shapes)


def _are_given_alike(mine: tuple[Any, ...], its: tuple[Any, ...], rows: int, others: int) -> bool:
    if len(mine) != len(its):
        return False
    return all(
        a.is_like(b, rows, others) if isinstance(a, _Constant) else a == b
        for a, b in zip(mine, its, strict=True)
    )


def _grows(rows: list[int], sizes: tuple[int, ...], *, by: bool = False) -> bool:
    """Whether a size is the same for all numbers of rows, or so many times that number.

    Args:
        by: a constant may be added.
    """
    if len(set(sizes)) == 1:
        return True
    if not by:
        return all(size * rows[0] == sizes[0] * count for count, size in zip(rows, sizes, strict=True))
    step, rest = divmod(sizes[-1] - sizes[0], rows[-1] - rows[0])
    if rest:
        return False
    return all(size - sizes[0] == step * (count - rows[0]) for count, size in zip(rows, sizes, strict=True))


def use_the_same(first: Sequence[Operation], other: Sequence[Operation]) -> bool:
    """Whether both compute by the same fractions, from the same of what was there before."""
    return _fractions(first) == _fractions(other) and _known(first) == _known(other)


def _fractions(operations: Sequence[Operation]) -> set[float]:
    return {number for each in operations for number in each.fixed if isinstance(number, float)}


def _known(operations: Sequence[Operation]) -> frozenset[int]:
    return frozenset().union(*(each.known for each in operations))
