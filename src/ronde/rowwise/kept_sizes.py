"""Batch sizes that modules keep as attributes between calls (`self.shape = x.shape`).

Between calls such an attribute has its value for the whole batch, as on one device. Inside a call on shards
it has the value for this rank's rows, and inside an observed call it is a number of rows (`RowsInt`).
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from ronde.rowwise.rows_int import RowCounts, RowsInt, is_counted
from ronde.rowwise.verdict import Attribute

__all__ = ["AMBIGUOUS", "KeptSizes", "ObservedSizes"]

# The size fits both another batch and a rank's part of this one.
AMBIGUOUS = "ambiguous"

_TUPLES = (tuple, torch.Size)


@dataclasses.dataclass(frozen=True, slots=True)
class _Size:
    """A number, or a tuple with numbers, that depends on the batch size.

    Attributes:
        value: value for the whole batch.
        times: quotient of each number and the number of rows; 0 for an unrelated number.
    """

    value: Any
    times: tuple[int, ...]

    def of(self, number: Callable[[int], int]) -> Any:
        """Return the size with `number(times)` in place of each number of rows."""
        if type(self.value) not in _TUPLES:
            return number(self.times[0])
        entries = zip(self.value, self.times, strict=True)
        return type(self.value)([number(times) if times else each for each, times in entries])

    def is_of(self, rows: int) -> bool:
        """Return whether the size is that of a batch with this number of rows."""
        return self.value == self.of(lambda times: times * rows)

    def counted(self) -> tuple[int, ...]:
        return tuple([each for each, times in zip(_entries(self.value), self.times) if times])


_Kept = tuple[torch.nn.Module, str, _Size]


class KeptSizes:
    """Registry of module attributes that are batch sizes; one per session."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[torch.nn.Module, dict[str, _Size]] = (
            weakref.WeakKeyDictionary()
        )

    def form(
        self, module: torch.nn.Module, rows: int, parts: Callable[[int], Iterable[int]]
    ) -> tuple[Any, ...]:
        """Return how a module's kept sizes relate to a batch, for the call's form.

        For each size: None if it is that of a batch with `rows` rows; the numbers of another batch; or
        `AMBIGUOUS`.

        Args:
            parts: function of a number of rows that returns the ranks' shares.
        """
        return tuple([_relation(size, rows, parts(rows)) for _, _, size in self.of(module)])

    def shown(
        self, module: torch.nn.Module, rows: int, mine: int, written: Sequence[Attribute] = ()
    ) -> AbstractContextManager[None]:
        """Show sizes for this rank's rows inside the `with` block, and restore them after.

        Args:
            written: attributes that the observed call of this form has set.
        """
        return self._shown(module, rows, mine, written) if self._known or written else nullcontext()

    @contextmanager
    def _shown(
        self, module: torch.nn.Module, rows: int, mine: int, written: Sequence[Attribute]
    ) -> Iterator[None]:
        held = _show(self.of(module), rows, lambda times: times * mine)
        try:
            yield
        finally:
            changed = _put_back(held)
            changed |= {(module.get_submodule(path), name): times for path, name, times in written}
            for (part, name), times in changed.items():
                self._make_whole(part, name, times, rows, mine)

    @contextmanager
    def kept_whole(self, module: torch.nn.Module, rows: int) -> Iterator[None]:
        """Remember sizes that a body sets while it runs on the whole batch."""
        held = self.of(module)
        try:
            yield
        finally:
            for part, name, size in held:
                self._make_whole(part, name, size.times, rows, rows)

    def _make_whole(
        self, part: torch.nn.Module, name: str, times: tuple[int, ...], rows: int, mine: int
    ) -> None:
        """Scale an attribute set by a call on this rank's rows to all rows."""
        value = vars(part).get(name)
        if len(_entries(value)) == len(times) and _Size(value, times).is_of(mine):
            self.know(part, name, _whole(value, times, rows))

    def of(self, module: torch.nn.Module) -> list[_Kept]:
        """Return the kept sizes in a module that were not overwritten since."""
        if not self._known:
            return []
        parts = [part for part in module.modules() if part in self._known]
        found = [(part, name, size) for part in parts for name, size in self._known[part].items()]
        return [(part, name, size) for part, name, size in found if vars(part).get(name) is size.value]

    def know(self, part: torch.nn.Module, name: str, size: _Size) -> None:
        """Set an attribute, and record it as a batch size."""
        vars(part)[name] = size.value
        self._known.setdefault(part, {})[name] = size


class ObservedSizes:
    """A module's kept sizes during an observed call, shown as numbers of rows.

    Args:
        keeps: whether sizes that the call sets are recorded; else they are left unchanged.
    """

    def __init__(self, kept: KeptSizes, module: torch.nn.Module, counts: RowCounts, *, keeps: bool) -> None:
        self._kept, self._module, self._counts, self._keeps = kept, module, counts, keeps
        self._held: list[tuple[_Kept, Any]] = []
        self._found: list[_Kept] = []

    def show(self) -> None:
        """Show sizes of this batch as numbers of rows."""
        counts = self._counts
        self._held = _show(
            self._kept.of(self._module), counts.whole, lambda times: RowsInt.length(counts, times)
        )

    def settle(self) -> tuple[Attribute, ...]:
        """Scale sizes to the whole batch; return the attributes that the call has set."""
        _put_back(self._held)
        self._held = []
        if not self._keeps:
            return ()
        written: list[Attribute] = []
        for path, part in self._module.named_modules():
            for name, value in list(vars(part).items()):
                if times := _times(value):
                    size = _whole(value, times, self._counts.whole)
                    vars(part)[name] = size.value
                    self._found.append((part, name, size))
                    written.append((path, name, times))
        return tuple(written)

    def know(self) -> None:
        """Record the sizes that the call has set, once it is accepted."""
        for part, name, size in self._found:
            self._kept.know(part, name, size)


def _show(kept: Iterable[_Kept], rows: int, number: Callable[[int], int]) -> list[tuple[_Kept, Any]]:
    """Replace the numbers of rows in sizes of this batch, and return the replacements."""
    held = [(each, each[2].of(number) if each[2].is_of(rows) else each[2].value) for each in kept]
    for (part, name, _), here in held:
        vars(part)[name] = here
    return held


def _put_back(held: Iterable[tuple[_Kept, Any]]) -> dict[tuple[torch.nn.Module, str], tuple[int, ...]]:
    """Undo `_show`, and return the attributes that were set meanwhile."""
    changed: dict[tuple[torch.nn.Module, str], tuple[int, ...]] = {}
    for (part, name, size), here in held:
        if vars(part).get(name) is here:
            vars(part)[name] = size.value
        else:
            changed[part, name] = size.times
    return changed


def _whole(value: Any, times: tuple[int, ...], rows: int) -> _Size:
    return _Size(_Size(value, times).of(lambda each: each * rows), times)


def _entries(value: Any) -> tuple[Any, ...]:
    return value if type(value) in _TUPLES else (value,)


def _times(value: Any) -> tuple[int, ...]:
    """Return each number's multiple of the number of rows, 0 for unrelated ones.

    The result is () if no entry is a number of rows, or one of these was computed.
    """
    entries = _entries(value)
    if not any(map(is_counted, entries)):
        return ()
    times = tuple([each.times if is_counted(each) else 0 for each in entries])
    return times if all(found or not is_counted(each) for each, found in zip(entries, times)) else ()


def _relation(size: _Size, rows: int, parts: Iterable[int]) -> Any:
    if size.is_of(rows):
        return None
    likely = any(size.is_of(part) for part in parts)
    return AMBIGUOUS if likely else size.counted()
