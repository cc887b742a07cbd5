"""Backward in two halves: gradients of inputs first, of weights later.

The first half runs the nodes of a graph that lead to its messages, and records the gradients that arrive at
nodes that lead to weights too. The second half runs these nodes once more, for the weights alone: each half
has one of the two products of a matrix product. As in ZB-H1 (Qi et al. 2023), and in torch's own pipelines.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

__all__ = ["WeightHalf", "input_half"]

# torch's own functions, because a session replaces them for scripts.
_GRAD: Any = torch.autograd.grad
_BACKWARD: Any = torch.autograd.backward

_Edge = tuple[Any, int]


@dataclasses.dataclass(slots=True)
class WeightHalf:
    """Second half of a backward.

    Attributes:
        late: nodes that run once more: gradients that arrived at them, and their edges to weights.
        known: leaves, with gradients that the first half has computed already.
    """

    late: list[tuple[dict[_Edge, torch.Tensor], list[_Edge]]]
    known: dict[_Edge, torch.Tensor]

    def __call__(self) -> None:
        """Accumulate the gradients of weights; once."""
        found, self.known = list(self.known.items()), {}
        while self.late:
            given, edges = self.late.pop()
            made = _GRAD(_edges(given), _edges(edges), list(given.values()), allow_unused=True)
            found += [(edge, each) for edge, each in zip(edges, made, strict=True) if each is not None]
        if found:
            _BACKWARD(_edges(edge for edge, _ in found), [each for _, each in found])


def input_half(end: torch.Tensor, token: torch.Tensor) -> WeightHalf:
    """Run backward from a scalar to the messages' leaf; return the weights' half."""
    target = _node_of(token)
    graph = _Graph.of(end.grad_fn, target)
    late, early = graph.cut(target)
    come = [(node, place) for node in late for place in sorted(graph.places[node])]
    asked = list(dict.fromkeys([(target, 0), *come, *early]))
    made = _GRAD(end, _edges(asked), torch.zeros_like(end), retain_graph=bool(late), allow_unused=True)
    found = {edge: each for edge, each in zip(asked, made, strict=True) if each is not None}
    given = {node: {edge: found[edge] for edge in come if edge[0] is node and edge in found} for node in late}
    return WeightHalf(
        [(given[node], edges) for node, edges in late.items() if given[node]],
        {edge: found[edge] for edge in early if edge in found},
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Graph:
    """Nodes of a graph with an end.

    Attributes:
        places: inputs of each node's backward, as indices of gradients.
        before: nodes that pass gradients on to each node.
    """

    end: Any
    places: dict[Any, set[int]]
    before: dict[Any, set[Any]]

    @classmethod
    def of(cls, end: Any, target: Any) -> _Graph:
        places: dict[Any, set[int]] = {end: {0}, target: {0}}
        before: dict[Any, set[Any]] = {target: set()}
        ahead = [end]
        while ahead:
            node = ahead.pop()
            for each, place in _next(node):
                if each not in before:
                    ahead.append(each)
                before.setdefault(each, set()).add(node)
                places.setdefault(each, set()).add(place)
        return cls(end, places, before)

    def cut(self, target: Any) -> tuple[dict[Any, list[_Edge]], list[_Edge]]:
        """Return nodes that run later, with their edges to weights, and other leaves.

        The nodes lead to the target; the leaves do not run later.
        """
        leads = _closure([target], lambda node: self.before.get(node, ()))
        edges = [(node, edge) for node in leads for edge in _next(node) if edge[0] not in leads]
        # An `autograd.Function` computes all of its gradients at once, and a node with several predecessors
        # would be reached from the others as well.
        late, apart = dict[_Edge, Any](), [] if self.end in leads else [self.end]
        for node, edge in edges:
            by_python = isinstance(node, torch.autograd.function.BackwardCFunction)
            if by_python or len(self.before[edge[0]]) > 1:
                apart.append(edge[0])
            else:
                late[edge] = node
        early, leaves = _leaves(apart), {edge: _leaves([edge[0]]) for edge in late}
        while shared := [edge for edge in late if early & leaves[edge]]:
            for edge in shared:
                del late[edge]
                early |= leaves[edge]
        by_node: dict[Any, list[_Edge]] = {}
        for edge, node in late.items():
            by_node.setdefault(node, []).append(edge)
        return by_node, [(leaf, 0) for leaf in early]


def _next(node: Any) -> list[_Edge]:
    return [edge for edge in node.next_functions if edge[0] is not None]


def _leaves(nodes: Iterable[Any]) -> set[Any]:
    """Return the accumulation nodes reachable from nodes."""
    found = _closure(nodes, lambda node: [each for each, _ in _next(node)])
    return {node for node in found if hasattr(node, "variable")}


def _closure(nodes: Iterable[Any], ahead: Callable[[Any], Iterable[Any]]) -> set[Any]:
    found = set(nodes)
    left = list(found)
    while left:
        new = set(ahead(left.pop())) - found
        found |= new
        left += new
    return found


def _edges(edges: Iterable[_Edge]) -> list[GradientEdge]:
    return [GradientEdge(*edge) for edge in edges]


def _node_of(leaf: torch.Tensor) -> Any:
    """Return the node that accumulates a leaf's gradient."""
    view: Any = leaf.view_as(leaf).grad_fn
    return view.next_functions[0][0]
