"""What the script itself puts into its computations on batches and outputs: numbers, and tensors of its own.

A weight of the loss that a thread sets, targets that a process gives: each rank has its own, and the
gradients of several losses would be mixed. So they are noted, to be compared before the next backward.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any

import numpy
import torch

__all__ = ["KIND_OF_NUMBERS", "ScriptValues", "numbers"]

# In the place of a digest, where there is but a number of Python's.
KIND_OF_NUMBERS = 0.0
# So far from the largest number that sums of such are numbers.
_LARGEST = 1e200
# Of a tensor, as many elements are looked at.
_ELEMENTS = 1024
# As many are told apart; a script that computes more, or never calls backward, has them added up.
_MOST = 64
# Of a long list, as many entries.
_LONGEST = 256


class ScriptValues:
    """Those since the last backward, in rows of three numbers: one of what must be the same, and two sums.

    Attributes:
        watched: the script has started threads or processes: what they give may differ between ranks.
    """

    def __init__(self) -> None:
        self.watched = False
        self._count = self._exact = 0
        self._rows: list[tuple[float, float, float]] = []
        self._last: list[Any] = []

    def note(self, given: Any) -> None:
        """The arguments of an operation; what is global in them has come from a model or a loader."""
        for value in _values(given):
            if isinstance(value, int):  # a truth value, too
                self._exact = zlib.crc32(str(int(value)).encode(), self._exact)
            elif isinstance(value, float):
                self._add(_of_number(value), value)
            else:
                self._add(numbers(value), (value.dtype, tuple(value.shape)))

    def rows(self) -> list[tuple[float, float, float]]:
        """As many whatever was noted; the last one tells how many there were, and of whole numbers."""
        missing = _MOST - len(self._rows)
        exact = zlib.crc32(str(self._count).encode(), self._exact)
        return [*self._rows, *[(0.0, 0.0, 0.0)] * missing, (float(exact), 0.0, 0.0)]

    def shown(self, place: int) -> str:
        """What was noted last in a row, in words that differ from those for other numbers."""
        if place >= len(self._rows):
            return f"{self._count} numbers and tensors, and whole numbers (digest {self._exact:08x})"
        last, digest = self._last[place], zlib.crc32(repr(self._rows[place]).encode())
        if isinstance(last, float):
            return f"{last!r} (digest {digest:08x})"
        kind, shape = last
        return f"{str(kind).removeprefix('torch.')} {list(shape)} (digest {digest:08x})"

    def clear(self) -> None:
        self._count = self._exact = 0
        self._rows.clear()
        self._last.clear()

    def _add(self, row: tuple[float, float, float], last: Any) -> None:
        turn, place = divmod(self._count, _MOST)
        self._count += 1
        if not turn:
            self._rows.append(row)
            self._last.append(last)
            return
        kind, size, placed = self._rows[place]
        both = zlib.crc32(str(row[0]).encode(), int(kind))
        self._rows[place] = float(both), size + row[1], placed + row[2] * math.cos(turn)
        self._last[place] = last


def _values(given: Any) -> Iterator[Any]:
    """Numbers, and plain tensors in no graph: what has one comes from parameters, which are alike."""
    if isinstance(given, (int, float)):
        yield given
    elif type(given) is torch.Tensor:
        if not given.requires_grad and not given.is_meta:
            yield given
    elif isinstance(given, (tuple, list)):
        for each in given[:: len(given) // _LONGEST + 1]:
            yield from _values(each)
    elif isinstance(given, dict):
        yield from _values(list(given.values()))
    elif isinstance(given, slice):
        yield from _values((given.start, given.stop, given.step))
    elif isinstance(given, complex):
        yield from (given.real, given.imag)
    elif isinstance(given, numpy.generic):
        yield from _values(given.item())
    elif isinstance(given, numpy.ndarray) and given.dtype.kind in "biufc":
        yield torch.from_numpy(numpy.ascontiguousarray(given))


def _of_number(value: float) -> tuple[float, float, float]:
    if not math.isfinite(value):
        return float(zlib.crc32(str(value).encode())), 0.0, 0.0
    value = max(-_LARGEST, min(value, _LARGEST))
    return KIND_OF_NUMBERS, abs(value), value


def numbers(value: torch.Tensor) -> tuple[float, float, float]:
    """A tensor in three numbers: a digest of what must be the same, a sum of sizes, and one by places."""
    kind = str((value.dtype, tuple(value.shape))).encode()
    if value.layout is not torch.strided or value.is_nested or value.is_quantized or not value.numel():
        return float(zlib.crc32(kind)), 0.0, 0.0
    values = _some(value.detach())
    if not value.dtype.is_floating_point and not value.dtype.is_complex:
        return float(zlib.crc32(kind + values.tobytes())), 0.0, 0.0
    finite = numpy.nan_to_num(values, posinf=1e30, neginf=-1e30).clip(-_LARGEST, _LARGEST)
    weights = numpy.cos(1.7 * numpy.arange(len(finite)))
    return float(zlib.crc32(kind)), float(abs(finite).sum()), float((finite * weights).sum())


def _some(value: torch.Tensor) -> Any:
    """Some elements in order, none of them copied before it is chosen."""
    # An odd step does not come to the same columns of every row.
    places = torch.arange(0, value.numel(), (value.numel() // _ELEMENTS) | 1, device=value.device)
    some = value[torch.unravel_index(places, value.shape)] if value.dim() else value.reshape(1)
    some = some.resolve_conj().resolve_neg()
    if some.is_complex():
        some = torch.view_as_real(some).reshape(-1)
    return (some.double() if some.is_floating_point() else some).cpu().numpy()
