"""What a result's gradient graph leads to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

__all__ = ["leaves_behind", "now", "uses_older"]


def now() -> int:
    """A mark in time: nodes of gradient graphs made from here on are not older."""
    return torch.autograd._get_sequence_nr()


def _nodes(results: Iterable[Any], since: int, known: Iterable[Any]) -> Iterator[Any]:
    """Nodes behind tensors, back to the first that were made before `since`; none behind `known`."""
    seen = set(known)
    pending = [value.grad_fn for value in results if isinstance(value, torch.Tensor)]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        if node._sequence_nr() >= since:
            pending.extend(following for following, _ in node.next_functions)


def uses_older(results: Iterable[Any], since: int, known: Iterable[Any]) -> bool:
    """Whether tensors come from a value in the midst of a graph that was made before `since`."""
    return any(node._sequence_nr() < since for node in _nodes(results, since, known))


def leaves_behind(results: Iterable[Any], since: int) -> Iterator[torch.Tensor]:
    """Leaves that tensors made since then depend on."""
    return (node.variable for node in _nodes(results, since, ()) if hasattr(node, "variable"))
