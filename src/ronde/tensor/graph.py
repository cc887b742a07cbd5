"""Traversal of the autograd graph of results."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ronde.patching.torch_internals import autograd_sequence_number
from ronde.tensor.deferred import DeferredScalar

__all__ = [
    "Reached",
    "crosses_ranks",
    "is_users_function",
    "leaves_behind",
    "nodes_behind",
    "now",
    "reached",
]


def now() -> int:
    """Return the autograd sequence number: nodes created later have larger numbers."""
    return autograd_sequence_number()


def nodes_behind(results: Iterable[Any], since: int) -> Iterator[Any]:
    """Yield the nodes behind tensors, back to the first from before `since`."""
    seen = set[Any]()
    pending = [value.grad_fn for value in results if isinstance(value, torch.Tensor)]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        if node._sequence_nr() >= since:
            pending.extend(following for following, _ in node.next_functions)


def _functions(results: Iterable[Any]) -> Iterator[Any]:
    """Yield the `torch.autograd.Function`s in the graph of tensors."""
    for node in nodes_behind(results, 0):
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            yield getattr(node, "_forward_cls", None)


def _home(function: Any) -> str:
    return getattr(function, "__module__", "torch")


def is_users_function(function: Any) -> bool:
    """Return whether the backward of a `torch.autograd.Function` was written by the user.

    The backward of a custom operator (`torch.library.custom_op`) is called by a function of torch.
    """
    home = _home(function)
    return home == "torch._library.autograd" or home.split(".")[0] not in ("torch", "ronde")


def crosses_ranks(results: Any) -> bool:
    """Return whether backward from these tensors would communicate."""
    found = list(results) if isinstance(results, (tuple, list)) else [results]
    if any(isinstance(value, DeferredScalar) for value in found):
        return True
    return any(_home(function).split(".")[0] == "ronde" for function in _functions(found))


@dataclasses.dataclass(slots=True)
class Reached:
    """A leaf that a backward accumulates a gradient into.

    Attributes:
        narrow: nodes through which the gradient arrives in a narrow dtype, as autocast cast the leaf for a
            model.
        otherwise: whether part of the gradient arrives by other nodes.
    """

    leaf: torch.Tensor
    narrow: list[Any] = dataclasses.field(default_factory=list)
    otherwise: bool = False


def reached(results: torch.Tensor | Iterable[Any], narrow: torch.dtype) -> list[Reached]:
    """Return every leaf that a backward from these tensors reaches.

    Args:
        narrow: dtype of autocast, by which each leaf's paths are told apart.
    """
    several = [results] if isinstance(results, torch.Tensor) else results
    results = [value for value in several if isinstance(value, torch.Tensor)]
    found = {id(value): Reached(value, otherwise=True) for value in results if value.is_leaf}
    for node in nodes_behind(results, 0):
        for following, _ in node.next_functions:
            leaf = getattr(following, "variable", None)
            if leaf is not None:
                known = found.setdefault(id(leaf), Reached(leaf))
                if node.name() == "ToCopyBackward0" and node._input_metadata[0].dtype is narrow:
                    known.narrow.append(node)
                else:
                    known.otherwise = True
    return list(found.values())


def leaves_behind(results: Iterable[Any], since: int) -> list[torch.Tensor]:
    """Return leaves behind tensors, if more than the graph references them.

    The graph is searched back to nodes from before `since`. A leaf that a model made for itself, to take a
    gradient inside, is referenced by Python no longer when the model returns.
    """
    nodes = [node for node in nodes_behind(results, since) if hasattr(node, "variable")]
    alone = _references(_made_and_forgotten())
    return [node.variable for node in nodes if _references(node) > alone]


def _references(node: Any) -> int:
    leaf = node.variable
    return sys.getrefcount(leaf)


def _made_and_forgotten() -> Any:
    """Create the node of a leaf that only the graph references.

    Its reference count depends on the version of torch.
    """
    with torch.inference_mode(False), torch.enable_grad():
        product = torch.ones(1, requires_grad=True) * 2
    assert product.grad_fn is not None
    return product.grad_fn.next_functions[0][0]
