"""Which servers have which elements of a value, by MXNet's rule: big ones are cut, small ones lie on one."""

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

__all__ = ["Key", "Part", "Place", "by_server", "elements_of", "key_number", "listed", "place_of"]

Key = int | str


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Elements of a value on one server: whole rows, `start` to `stop` of the flat value."""

    server: int
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start

    def rows_of(self, target: torch.Tensor) -> slice | tuple[()]:
        """The rows of a tensor of the value's shape."""
        if not target.dim():
            return ()
        dim = target.numel() // target.shape[0]
        return slice(self.start // dim, self.stop // dim)

    def shape_in(self, target: torch.Tensor) -> Sequence[int]:
        """Of those rows where the tensor is not contiguous; flat where it is."""
        if target.is_contiguous():
            return (self.numel,)
        return target[self.rows_of(target)].shape


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """One key's value.

    Attributes:
        number: by which servers know the key.
        parts: none where the value has no elements.
    """

    key: Key
    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def numel(self) -> int:
        return sum(part.numel for part in self.parts)

    def check(self, what: str, value: torch.Tensor) -> None:
        """See that a tensor is as the value.

        Raises:
            UsageError: it is not.
        """
        if tuple(value.shape) != self.shape or value.dtype != self.dtype:
            raise UsageError(
                f"KVStore.{what}({self.key!r}): {list(value.shape)} {value.dtype}, and init() gave this key "
                f"{list(self.shape)} {self.dtype}"
            )


def key_number(key: Key) -> int:
    """By which servers know a key: the same on every worker, whatever other keys it has."""
    word = f"i{key}" if isinstance(key, int) else f"s{key}"
    return xxhash.xxh3_64_intdigest(word.encode()) >> 1


def place_of(key: Key, value: torch.Tensor, servers: int, bound: int) -> Place:
    """Where a value lies that a key begins with.

    Raises:
        UsageError: servers do not know its dtype.
    """
    if value.dtype not in DTYPES.values():
        raise UsageError(
            f"KVStore.init({key!r}): servers do not know {value.dtype}; they know {', '.join(sorted(DTYPES))}"
        )
    number, numel = key_number(key), value.numel()
    rows = value.shape[0] if value.dim() else 1
    parts: tuple[Part, ...] = ()
    if numel and (numel < bound or servers == 1):
        parts = (Part(number % servers, 0, numel),)
    elif numel:
        edges = [rows * server // servers * (numel // rows) for server in range(servers + 1)]
        parts = tuple(
            Part(server, start, stop)
            for server, (start, stop) in enumerate(itertools.pairwise(edges))
            if stop > start
        )
    return Place(key, number, tuple(value.shape), value.dtype, parts)


def listed(what: str, key: Any, value: Any, *, sums: bool = False) -> list[tuple[Key, torch.Tensor]]:
    """A key, or each of a list of keys, with its tensor.

    Args:
        sums: a key may have a list of tensors, which are added.

    Raises:
        UsageError: not as many values as keys; what is not a key.
    """
    many = isinstance(key, (list, tuple))
    keys: Sequence[Any] = key if many else [key]
    values: Sequence[Any] = value if many else [value]
    if len(keys) != len(values):
        raise UsageError(f"KVStore.{what}: {len(keys)} keys and {len(values)} values; one for each is needed")
    if len(set(keys)) < len(keys):
        raise UsageError(f"KVStore.{what}: a key comes twice in {list(keys)!r}")
    found: list[tuple[Key, torch.Tensor]] = []
    for each, given in zip(keys, values, strict=True):
        if isinstance(each, bool) or not isinstance(each, (int, str)):
            raise UsageError(f"KVStore.{what}({each!r}): a key is a whole number or a word")
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
    raise UsageError(f"KVStore.{what}({key!r}): a value is a tensor, or for push() a list of equal shapes")


def by_server(places: Sequence[Place]) -> dict[tuple[int, torch.dtype], list[tuple[int, Part]]]:
    """For each server and dtype the parts that it has, each with the number of its place."""
    found: dict[tuple[int, torch.dtype], list[tuple[int, Part]]] = {}
    for number, place in enumerate(places):
        for part in place.parts:
            found.setdefault((part.server, place.dtype), []).append((number, part))
    return found


def elements_of(target: torch.Tensor, part: Part) -> torch.Tensor:
    """A view of some elements of a tensor that need not lie in one stretch."""
    if target.is_contiguous():
        return target.view(-1)[part.start : part.stop]
    return target[part.rows_of(target)]
