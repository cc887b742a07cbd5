"""Selection of row-sharded weights: of sparse `nn.Embedding` and `nn.EmbeddingBag`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ronde.rowwise.compiled import is_compiled

__all__ = ["RowUnits"]

_Table = nn.Embedding | nn.EmbeddingBag


class RowUnits:
    """Finds the weights of a model to be spread, each its own unit.

    Args:
        note: callback for weights that stay whole on every rank, with the reason.
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
                    f"the rows of {_named(name)} ({type(table).__name__}) stay whole on every rank: "
                    f"{why} [R471]"
                )
        found = {id(table.weight): table.weight for _, table in tables if id(table.weight) not in whole}
        return [[weight] for weight in found.values()]


def _sparse_tables(model: nn.Module) -> Iterator[tuple[str, _Table]]:
    for name, part in model.named_modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse and _is_trained(part.weight):
            yield name, part


def _is_trained(weight: torch.Tensor) -> bool:
    # A sharded weight has another class, and is not new; a parametrized one is not a leaf.
    return isinstance(weight, nn.Parameter) and not is_lazy(weight) and weight.requires_grad


def _why_whole(table: _Table) -> str:
    """Return why a table's rows cannot be spread, or ""."""
    weight = table.weight
    if table.max_norm is not None:
        return "max_norm writes to rows as they are looked up"
    if table.scale_grad_by_freq:
        return "scale_grad_by_freq counts ids of the whole batch"
    if not weight.is_floating_point() or not weight.is_contiguous() or not weight.numel():
        return "it is not a contiguous matrix of floats"
    return ""


def _named(name: str) -> str:
    return f"{name}.weight" if name else "weight"
