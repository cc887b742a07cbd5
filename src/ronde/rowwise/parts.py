"""Trial runs of an operation on a few rows, and on parts of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ronde.rowwise.labels import Drawn, Label, Relative
from ronde.rowwise.operation import ObservedOperation, numbers_in, replaced, tensors
from ronde.rowwise.watch import CallWatch

__all__ = ["PARTS", "RowSplit", "alike", "is_real", "ways"]

PARTS = (0, 1, 2)
_ATEN = torch.ops.aten
_RECURRENT = frozenset((_ATEN.lstm.input, _ATEN.gru.input, _ATEN.rnn_tanh.input, _ATEN.rnn_relu.input))
# Operands without rows are random too, if they are small or all zeros.
_SMALL = 1 << 16


def is_real(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


class RowSplit:
    """One way to run an operation on some of the rows.

    Args:
        random: whether operands have random values, except indices.
        sizes: places of arguments in which a number equal to a row count is taken for one.
        constants: whether dimensions of other tensors that are constant along them are also narrowed.
    """

    def __init__(
        self, watch: CallWatch, op: ObservedOperation, sizes: frozenset[int], *, constants: bool, random: bool
    ) -> None:
        self._watch, self._op = watch, op
        self._sizes, self._constants, self._random = sizes, constants, random
        self._lengths = _lengths(op)
        self._made: dict[int, torch.Tensor] = {}

    def results(self, part: int) -> list[torch.Tensor]:
        """Return the operation's results for a part."""
        op, names = self._op, self._op.facts.names
        args = [self._shown(value, place, part) for place, value in enumerate(op.args)]
        kwargs = {
            name: self._shown(value, names.index(name) if name in names else -1, part)
            for name, value in op.kwargs.items()
        }
        if op.func in _RECURRENT:
            _check_states(args)
        result = op.func(*args, **kwargs)
        written = [args[place] if place < len(args) else kwargs[name] for place, name in op.facts.written]
        return tensors(written) or tensors(result)

    def tells(self, results: list[torch.Tensor]) -> bool:
        """Return whether random values led to comparable (finite) results."""
        return not self._random or all(bool(each.isfinite().all()) for each in results if is_real(each))

    def _shown(self, argument: Any, place: int, part: int) -> Any:
        """Return the replacement of an argument for a part."""
        lengths = self._lengths if place in self._sizes else {}

        def shown(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return self._tensor(value, part)
            return lengths[value][part] if type(value) is int and value in lengths else value

        return replaced(argument, shown)

    def _tensor(self, tensor: torch.Tensor, part: int) -> torch.Tensor:
        mark = self._op.mark(tensor)
        if type(mark) is Relative:
            return mark.parts[part].clone()
        if type(mark) is not Label:
            return self._narrowed(self._constant(tensor), part)
        few = self._made.get(id(tensor))
        if few is None:
            few = self._made[id(tensor)] = self._few(mark.order.pick(tensor, mark.axis, 0))
        return mark.order.few.pick(few, mark.axis, part).clone()

    def _few(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the first few rows of an operand, or random values for them."""
        if self._random and is_real(rows):
            return self._drawn(rows)
        if self._random and len(self._op.operands) == 1 and rows.dtype is not torch.bool:
            return torch.empty_like(rows).random_(0, 7, generator=self._watch.generator(rows.device))
        return rows.clone()

    def _constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an operand without rows, or random values for it."""
        if self._random and is_real(tensor) and (tensor.numel() <= _SMALL or _is_blank(tensor)):
            if id(tensor) not in self._made:
                self._made[id(tensor)] = self._drawn(tensor)
            tensor = self._made[id(tensor)]
        return tensor.clone() if self._op.facts.written else tensor

    def _narrowed(self, tensor: torch.Tensor, part: int) -> torch.Tensor:
        if self._constants:
            for dim, length in enumerate(tensor.shape):
                first = tensor.narrow(dim, 0, 1)
                if length in self._lengths and torch.equal(first.expand_as(tensor), tensor):
                    return tensor.narrow(dim, 0, self._lengths[length][part])
        return tensor

    def _drawn(self, like: torch.Tensor) -> torch.Tensor:
        """Return random numbers in [0, 1), which most operations accept."""
        made = torch.empty_like(like)
        real = torch.view_as_real(made) if made.is_complex() else made
        real.uniform_(generator=self._watch.generator(like.device))
        return made


def _check_states(args: Sequence[Any]) -> None:
    """Reject a state with other rows: oneDNN's recurrent layers would read past it."""
    sequence, state, batch_first = args[0], args[1], args[8]
    rows = sequence.shape[0 if batch_first else 1]
    for each in (state,) if isinstance(state, torch.Tensor) else state:
        if each.shape[1] != rows:
            raise ValueError("rows of a state")


def _is_blank(tensor: torch.Tensor) -> bool:
    corner = tensor[tuple(slice(8) for _ in tensor.shape)]
    return not bool(corner.count_nonzero())


def _lengths(op: ObservedOperation) -> dict[int, tuple[int, ...]]:
    """Map each length that counts rows to its values for the parts."""
    found: dict[int, tuple[int, ...]] = {}
    for operand, mark in op.pairs():
        if type(mark) is Label:
            found[len(mark.order)] = tuple(len(mark.order.places(part)) for part in PARTS)
        elif type(mark) is Relative and operand.dim() == mark.parts[0].dim():
            for dim, length in enumerate(operand.shape):
                sizes = tuple(each.shape[dim] for each in mark.parts)
                if any(size != length for size in sizes):
                    found[length] = sizes
    return found


def ways(watch: CallWatch, op: ObservedOperation, *, random: bool) -> Iterator[RowSplit]:
    """Yield ways to run an operation on parts.

    They differ in the numbers that are taken for lengths, and in whether constants have rows.
    """
    lengths = _lengths(op)
    made = functools.partial(RowSplit, watch, op, random=random)
    sizes = [
        place
        for place in sorted(op.facts.sizes)
        if any(number in lengths for number in numbers_in(op.given(place)))
    ]
    if sizes:
        yield made(frozenset(sizes), constants=False)
    if len(sizes) > 1:
        yield made(frozenset(sizes[:1]), constants=False)
    yield made(frozenset(), constants=False)
    if any(
        (mark is None or type(mark) is Drawn) and not lengths.keys().isdisjoint(operand.shape)
        for operand, mark in op.pairs()
    ):
        yield made(frozenset(sizes), constants=True)


_RELATIVE = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float16: 3e-2, torch.bfloat16: 3e-2}
_OF_LARGEST = {torch.float64: 1e-11, torch.complex128: 1e-11, torch.float16: 2e-2, torch.bfloat16: 2e-2}


def alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if torch.equal(a, b):
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return False
    finite = a.abs().nan_to_num(0.0, 0.0, 0.0)
    largest = float(finite.max()) if finite.numel() else 0.0
    relative, of_largest = _RELATIVE.get(a.dtype, 1e-3), _OF_LARGEST.get(a.dtype, 2e-5)
    return torch.allclose(a, b, rtol=relative, atol=of_largest * largest + 1e-30, equal_nan=True)
