"""Placement of a key's value on servers, by MXNet's rule.

Big values are split over all servers, small ones lie on one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xxhash

from ronde.errors import UsageError
from ronde.server.dense_checks import DTYPES

__all__ = [
    "Key",
    "KeyPlacement",
    "ValueSlice",
    "by_server",
    "elements_of",
    "key_number",
    "listed",
    "place_of",
]

Key = int | str


@dataclasses.dataclass(frozen=True, slots=True)
class ValueSlice:
    """Elements `start` to `stop` of a flat value on one server; always whole rows."""

    server: int
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start

    def rows_of(self, target: torch.Tensor) -> slice | tuple[()]:
        """Return the slice of rows of a tensor of the value's shape."""
        if not target.dim():
            return ()
        dim = target.numel() // target.shape[0]
        return slice(self.start // dim, self.stop // dim)

    def shape_in(self, target: torch.Tensor) -> Sequence[int]:
        """Return the shape of this part: flat if `target` is contiguous, else whole rows."""
        if target.is_contiguous():
            return (self.numel,)
        return target[self.rows_of(target)].shape


@dataclasses.dataclass(frozen=True, slots=True)
class KeyPlacement:
    """The placement of one key's value.

    Attributes:
        number: id of the key on servers.
        parts: elements by server; empty if the value has no elements.
    """

    key: Key
    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: tuple[ValueSlice, ...]

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def numel(self) -> int:
        return sum(part.numel for part in self.parts)

    def check(self, what: str, value: torch.Tensor) -> None:
        """Check that a tensor has the value's shape and dtype.

        Raises:
            UsageError: shape or dtype differ.
        """
        if tuple(value.shape) != self.shape or value.dtype != self.dtype:
            raise UsageError(
                f"KVStore.{what}({self.key!r}): {list(value.shape)} {value.dtype}, and init() gave this key "
                f"{list(self.shape)} {self.dtype} [R443]"
            )


def key_number(key: Key) -> int:
    """Return a key's id on servers, the same on every worker."""
    word = f"i{key}" if isinstance(key, int) else f"s{key}"
    return xxhash.xxh3_64_intdigest(word.encode()) >> 1


def place_of(key: Key, value: torch.Tensor, servers: int, bound: int) -> KeyPlacement:
    """Place a value: at least `bound` elements are split over all servers.

    Raises:
        UsageError: servers do not support its dtype.
    """
    if value.dtype not in DTYPES.values():
        raise UsageError(
            f"KVStore.init({key!r}): servers do not support {value.dtype}; they support "
            f"{', '.join(sorted(DTYPES))} [R443]"
        )
    number, numel = key_number(key), value.numel()
    rows = value.shape[0] if value.dim() else 1
    parts: tuple[ValueSlice, ...] = ()
    if numel and (numel < bound or servers == 1):
        parts = (ValueSlice(number % servers, 0, numel),)
    elif numel:
        edges = [rows * server // servers * (numel // rows) for server in range(servers + 1)]
        parts = tuple(
            ValueSlice(server, start, stop)
            for server, (start, stop) in enumerate(itertools.pairwise(edges))
            if stop > start
        )
    return KeyPlacement(key, number, tuple(value.shape), value.dtype, parts)


def listed(what: str, key: Any, value: Any, *, sums: bool = False) -> list[tuple[Key, torch.Tensor]]:
    """Return pairs of key and tensor, for one key or a list of keys.

    Args:
        sums: whether a key may have a list of tensors, which are added.

    Raises:
        UsageError: the numbers of keys and values differ; a key is invalid.
    """
    many = isinstance(key, (list, tuple))
    keys: Sequence[Any] = key if many else [key]
    values: Sequence[Any] = value if many else [value]
    if len(keys) != len(values):
        raise UsageError(
            f"KVStore.{what}: {len(keys)} keys and {len(values)} values; one for each is needed [R443]"
        )
    if len(set(keys)) < len(keys):
        raise UsageError(f"KVStore.{what}: a key is given twice in {list(keys)!r} [R443]")
    found: list[tuple[Key, torch.Tensor]] = []
    for each, given in zip(keys, values, strict=True):
        if isinstance(each, bool) or not isinstance(each, (int, str)):
            raise UsageError(f"KVStore.{what}({each!r}): a key is a whole number or a word [R443]")
        found.append((each, _tensor(what, each, given, sums)))
    return found


def _tensor(what: str, key: Key, given: Any, sums: bool) -> torch.Tensor:
    if isinstance(given, np.ndarray):
        return torch.from_numpy(given)
    if isinstance(given, torch.Tensor):
        return given.detach()
    if sums and isinstance(given, (list, tuple)) and given:
        tensors = [_tensor(what, key, each, False) for each in given]
        if len({(each.shape, each.dtype) for each in tensors}) == 1:
            with torch.no_grad():
                return torch.stack(tensors).sum(0, dtype=tensors[0].dtype) if len(tensors) > 1 else tensors[0]
    raise UsageError(
        f"KVStore.{what}({key!r}): a value is a tensor, or for push() a list of equal shapes [R443]"
    )


def by_server(places: Sequence[KeyPlacement]) -> dict[tuple[int, torch.dtype], list[tuple[int, ValueSlice]]]:
    """Group parts by server and dtype, each with the index of its place."""
    found: dict[tuple[int, torch.dtype], list[tuple[int, ValueSlice]]] = {}
    for number, place in enumerate(places):
        for part in place.parts:
            found.setdefault((part.server, place.dtype), []).append((number, part))
    return found


def elements_of(target: torch.Tensor, part: ValueSlice) -> torch.Tensor:
    """Return a view of a part's elements; `target` need not be contiguous."""
    if target.is_contiguous():
        return target.view(-1)[part.start : part.stop]
    return target[part.rows_of(target)]
