"""Containers that tell when they are asked how much is in them.

A memory bank that grows at every call cannot be rehearsed at each of its lengths. It need not be, where no
code asks for them: a history that is only written to, masks that are kept by their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ronde.boundary.members import LISTS, attributes, entries, pairs
from ronde.boundary.reach import BOOKKEEPING, SIMPLE, is_data

__all__ = ["containers", "noted_lengths"]

_DEEP, _MOST = 6, 4096


def containers(values: Iterable[Any]) -> list[Any]:
    """The lists, dicts and sets that values are, or lead to."""
    found: dict[int, Any] = {}
    held = list(values)
    for _ in range(_DEEP):
        held = [each for each in held if id(each) not in found and not isinstance(each, SIMPLE)][:_MOST]
        found.update((id(each), each) for each in held)
        held = [item for each in held for item in _inside(each)]
    return [each for each in found.values() if isinstance(each, (dict, *LISTS))]


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [item for _, item in pairs(value)]
    if isinstance(value, LISTS):
        return entries(value)
    if isinstance(value, torch.nn.Module):
        return [item for name, item in vars(value).items() if name not in BOOKKEEPING]
    return attributes(value).values() if is_data(type(value)) else ()


@contextmanager
def noted_lengths(
    namespaces: Iterable[dict[str, Any]], held: Iterable[Any], decisions: list[str]
) -> Iterator[None]:
    """Inside, it is appended to `decisions` that code asks for the length of one of these.

    Args:
        namespaces: the global variables of that code; libraries, compilers among them, see nothing of it.
    """
    known = {id(value): value for value in held}

    def asking(plain: Callable[[Any], int]) -> Callable[[Any], int]:
        def asked(value: Any, /) -> int:
            if id(value) in known:
                decisions.append("__len__")
            return plain(value)

        return asked

    own = [(each, each.get("len", len)) for each in namespaces if known]
    for namespace, plain in own:
        namespace["len"] = asking(plain)
    try:
        yield
    finally:
        for namespace, plain in own:
            if plain is len:
                del namespace["len"]
            else:
                namespace["len"] = plain
