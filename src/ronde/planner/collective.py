"""Seconds of collectives: `alpha + f S/beta + gamma sqrt(S)`, on several nodes the slower part.

A group of ranks that spans nodes shares the nodes' network cards with its like: a group with q ranks on each
node of g devices has g/q others beside it there, and q/g of the cards. A tensor group that fills nodes has
all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ronde.planner.cluster import Cluster

__all__ = ["FACTORS", "collective_seconds", "send_seconds"]

Floats = NDArray[np.float64]

FACTORS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0}
"""Passes of each byte over a link, less the last rank's share."""


def collective_seconds(
    cluster: Cluster,
    operation: str,
    size: Floats,
    ranks: NDArray[np.int64],
    stride: NDArray[np.int64],
    algorithm: str = "auto",
) -> Floats:
    """Return the seconds of one collective, for candidates in arrays of one shape.

    Args:
        operation: one of FACTORS.
        size: bytes of the larger of a rank's two buffers.
        ranks: the size of the group.
        stride: distance between neighbours of the group in the order of ranks: ranks in between have groups
            of their own.
        algorithm: the plan's algorithm: `hierarchical` sums on nodes, then across them, one after the other;
            with `tree` latency grows with the logarithm of nodes; others run as rings limited by the slowest
            link.
    """
    node = cluster.node_size
    on_node = np.clip(node // np.maximum(stride, 1), 1, ranks)
    nodes = np.ceil(ranks / on_node)
    factor = FACTORS[operation]
    inner = _inner(cluster, operation, size, on_node)
    # Rings that run at the same time share the cards of their node.
    beside = np.minimum(node, np.maximum(node // on_node, 1))
    link = cluster.network
    constants = link.constants(operation, int(nodes.max(initial=2)))
    beta = constants.beta * link.nics / beside
    hops = np.log2(np.maximum(nodes, 2)) if algorithm == "tree" else np.sqrt(np.maximum(nodes - 1, 1))
    # The ring passes each node's border with the same bytes as between any two ranks.
    steps = nodes if algorithm == "hierarchical" else ranks
    moved = factor * (steps - 1) / steps * size / beta
    outer = constants.alpha * hops + moved + constants.gamma * np.sqrt(size)
    spans = nodes > 1
    both = inner + outer if algorithm == "hierarchical" else np.maximum(inner, outer)
    found = np.where(spans, np.where(on_node > 1, both, outer), inner)
    return np.where(ranks > 1, found, 0.0)


def _inner(cluster: Cluster, operation: str, size: Floats, ranks: NDArray[np.int64]) -> Floats:
    """Return the seconds of a collective among the ranks of one node."""
    seconds = np.zeros(np.broadcast(size, ranks).shape)
    for count in np.unique(ranks):
        if count < 2:
            continue
        constants = cluster.node.constants(operation, int(count))
        factor = FACTORS[operation] * (count - 1) / count
        here = constants.alpha + factor * size / constants.beta + constants.gamma * np.sqrt(size)
        seconds = np.where(ranks == count, here, seconds)
    return seconds


def send_seconds(cluster: Cluster, size: Floats, stride: Any) -> Floats:
    """Return the seconds to send `size` bytes to the rank `stride` further on. All ranks send at once."""
    near = cluster.node.usual
    far = cluster.network.usual
    within = near.alpha + size / near.beta
    across = far.alpha + size / (far.beta * cluster.network.nics / cluster.node_size)
    return np.where(np.asarray(stride) < cluster.node_size, within, across)
