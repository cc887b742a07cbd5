"""What a global tensor keeps on this rank: its rows, the whole value once it was gathered, its views."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ronde.tensor.context import Context
from ronde.tensor.layout import Layout

__all__ = ["Origin", "Rule", "Shard"]

Rule = Callable[[Context, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """A tensor that another may be a view of, and how the other's whole value is made from its own."""

    base: weakref.ref[Shard]
    view: Callable[[torch.Tensor], torch.Tensor]
    # It is a matter of strides whether that is a view or a copy.
    may_copy: bool
    # It is `.data`, which shares memory but neither the graph nor the version.
    leaves_graph: bool


class Shard(torch.Tensor):
    """The state of a global tensor, which is its only subclass."""

    # Not in its dictionary, which is the script's, and which libraries copy to what they make of a tensor.
    __slots__ = (
        "_ahead", "_context", "_full", "_full_version", "_joined", "_kept", "_layout", "_origins", "_rows",
        "_rules", "_views",
    )  # fmt: skip
    _context: Context
    _layout: Layout
    _rules: dict[Any, Rule]
    # This rank's rows, part of the graph; None once the whole value is what the tensor is.
    _rows: torch.Tensor | None
    # The whole value, part of the graph, when it has been asked for, and its version then.
    _full: torch.Tensor | None
    _full_version: int
    # What this one may be a view of, the nearest first, and what may be views of it, the oldest first.
    _origins: list[Origin]
    _views: list[weakref.ref[Shard]]
    # The whole value of a view lies in that of what it is a view of; else it was gathered for itself.
    _joined: bool
    # What this and another are views of; see `views`.
    _kept: Shard | None
    # Gives the whole value, for which a gather was started when the tensor was made.
    _ahead: Callable[[], torch.Tensor] | None
