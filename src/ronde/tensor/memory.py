"""In which memory tensors lie, and which an operation writes to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

__all__ = ["memory", "tensors", "written"]


def memory(value: Any) -> int | None:
    """What two tensors that share memory have in common; None for a tensor without any of its own."""
    try:
        return value.untyped_storage().data_ptr() or None
    except (NotImplementedError, RuntimeError):
        return None


def written(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """The arguments of an operation that it says it changes."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = kwargs.get(argument.name) if argument.kwarg_only or place >= len(args) else args[place]
            yield from tensors(value)


def tensors(value: Any) -> list[torch.Tensor]:
    """Those among the arguments or results of an operation: asked of each, so in one list."""
    if isinstance(value, torch.Tensor):
        return [value]
    found: list[torch.Tensor] = []
    if isinstance(value, (tuple, list)):
        _add_tensors(found, value)
    return found


def _add_tensors(found: list[torch.Tensor], values: Iterable[Any]) -> None:
    for item in values:
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, (tuple, list)):
            _add_tensors(found, item)
