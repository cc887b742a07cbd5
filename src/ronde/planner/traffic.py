"""Traffic between ranks beyond plain gradient sums: compressors, periodic averages, servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ronde.plan import Plan

__all__ = ["USUAL", "PlanTraffic", "traffic_of"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlanTraffic:
    """Effect of a plan's communication and update values on traffic.

    Attributes:
        share: ratio of the bytes that travel to the bytes of gradients in the parameters' dtype.
        passes: the number of times that encoding and decoding read or write all gradients.
        every: steps between two exchanges.
        peers: ranks with which a rank exchanges; 0 for all.
        servers: the number of parameter servers; 0 without.
        waits: whether the step waits for the exchange.
    """

    share: float = 1.0
    passes: float = 0.0
    every: float = 1.0
    peers: int = 0
    servers: int = 0
    waits: bool = True


USUAL = PlanTraffic()

# Ratio of the bytes that travel to the bytes of float32, and passes over the gradients to encode and decode.
_CODING: Mapping[str, tuple[float, float]] = {
    "none": (1.0, 0.0),
    "fp16": (1 / 2, 3.0),
    "bf16": (1 / 2, 3.0),
    "int8": (1 / 4, 5.0),
    "onebit": (1 / 32, 5.0),
    "twobit": (1 / 16, 5.0),
    # A thousandth of the values with their places, from every rank; the selection reads all several times.
    "topk": (0.002, 12.0),
    "randomk": (0.002, 4.0),
    "powersgd": (0.01, 6.0),
}


def traffic_of(plan: Plan) -> PlanTraffic:
    """Return the traffic of a plan relative to the usual.

    >>> from ronde.plan import expand
    >>> traffic_of(expand("update=local,every=8")).every
    8.0
    """
    share, passes = _CODING[plan.communication.compressor]
    rule = plan.update.rule
    every = float(plan.update.every or 8) if rule in ("local", "geo") else 1.0
    return PlanTraffic(
        share=share,
        passes=passes + 2 * plan.communication.error_feedback,
        every=every,
        peers=2 if plan.update.peers == "shift-one" else 0,
        servers=plan.state.server_count if plan.state.placement == "server" else 0,
        waits=rule not in ("async", "async-average", "bounded", "geo"),
    )
