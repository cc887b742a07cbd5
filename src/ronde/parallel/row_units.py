"""Which weights of a model have their rows spread: those of sparse `nn.Embedding` and `nn.EmbeddingBag`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ronde.rowwise.compiled import is_compiled

__all__ = ["RowUnits"]

_Table = nn.Embedding | nn.EmbeddingBag


class RowUnits:
    """Finds the weights, each a unit of its own.

    Args:
        note: is told which stay whole on every rank, and why.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def __call__(self, model: nn.Module) -> list[list[torch.Tensor]]:
        tables = list(_sparse_tables(model))
        opaque = any(
            isinstance(part, torch.jit.ScriptModule) or is_compiled(part) for part in model.modules()
        )
        whole: set[int] = set()
        for name, table in tables:
            why = "its model is compiled" if opaque else _why_whole(table)
            if why:
                whole.add(id(table.weight))
                self._note(
                    f"the rows of {_named(name)} ({type(table).__name__}) stay whole on every rank: {why}"
                )
        found = {id(table.weight): table.weight for _, table in tables if id(table.weight) not in whole}
        return [[weight] for weight in found.values()]


def _sparse_tables(model: nn.Module) -> Iterator[tuple[str, _Table]]:
    for name, part in model.named_modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse and _is_trained(part.weight):
            yield name, part


def _is_trained(weight: torch.Tensor) -> bool:
    # A weight in parts has another class, and is no new one; one by a parametrization is no leaf.
    return isinstance(weight, nn.Parameter) and not is_lazy(weight) and weight.requires_grad


def _why_whole(table: _Table) -> str:
    """What its look-ups or its weight have that no other rank can do its part of; "" for nothing."""
    weight = table.weight
    if table.max_norm is not None:
        return "max_norm writes to rows as they are looked up"
    if table.scale_grad_by_freq:
        return "scale_grad_by_freq counts ids of the whole batch"
    if not weight.is_floating_point() or not weight.is_contiguous() or not weight.numel():
        return "it is no contiguous matrix of floats"
    return ""


def _named(name: str) -> str:
    return f"{name}.weight" if name else "weight"
