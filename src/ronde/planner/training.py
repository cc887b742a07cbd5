"""Time and price of a whole training, with its checkpoints and failures."""

from __future__ import annotations

import dataclasses
import math

from ronde.planner.cluster import Cluster

__all__ = ["Budget", "TrainingCost", "checkpoint_interval", "training_cost"]

_HOUR = 3600.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Length of a training, and its bounds.

    Attributes:
        samples: samples of the whole training.
        deadline: seconds that it may take; None without a bound.
        price: price of a device for an hour, in any currency; None where it is not known.
    """

    samples: float
    deadline: float | None = None
    price: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingCost:
    """Time and price of a whole training.

    Attributes:
        steps: optimizer steps.
        seconds: seconds from the first step to the last, with checkpoints and failures.
        price: price of the devices for that time; None where the price of one is not known.
        checkpoint: seconds of one checkpoint; 0 where the rate of storage is not known.
        interval: seconds of work between two checkpoints; None where failures are not known.
        lost: share of `seconds` that goes to checkpoints, repeated work and restarts.
        failures: failures that are expected.
        late: whether it ends after the deadline.
    """

    steps: float
    seconds: float
    price: float | None
    checkpoint: float
    interval: float | None
    lost: float
    failures: float
    late: bool


def checkpoint_interval(checkpoint: float, between: float) -> float:
    """Return the seconds of work between checkpoints that lose least (Daly 2006, equation 37).

    Young's first-order sqrt(2 d M) is its leading term.

    Args:
        checkpoint: seconds of a checkpoint, d.
        between: mean seconds between failures, M.

    >>> round(checkpoint_interval(60.0, 86400.0))
    3180
    """
    if checkpoint >= 2 * between:
        return between
    ratio = checkpoint / (2 * between)
    return math.sqrt(2 * checkpoint * between) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint


def training_cost(cluster: Cluster, budget: Budget, *, batch: int, step: float, state: float) -> TrainingCost:
    """Return the time and price of a training on all devices of a cluster.

    With failures every M seconds, restarts of R seconds, and checkpoints of d seconds after each t seconds of
    work, work of T seconds takes M exp(R/M) (exp((t + d)/M) - 1) T/t (Daly 2006, equation 20).

    Args:
        batch: samples of a step.
        step: seconds of a step.
        state: bytes of a checkpoint, on all devices together.
    """
    steps = math.ceil(budget.samples / batch)
    work = steps * step
    nodes = max(1, cluster.devices // cluster.node_size)
    reliability = cluster.reliability
    checkpoint = 0.0 if reliability.storage is None else state / (reliability.storage * nodes)
    seconds, interval, failures = work, None, 0.0
    if reliability.between is not None:
        between = reliability.between / nodes
        # Without a checkpoint's time each step may be one; a step is the least that is repeated.
        interval = max(step, checkpoint_interval(checkpoint, between))
        rounds = work / interval
        exponent = min((interval + checkpoint) / between, 700.0)
        seconds = (
            between * math.exp(min(reliability.restart / between, 700.0)) * math.expm1(exponent) * rounds
        )
        failures = seconds / between
    return TrainingCost(
        steps=steps,
        seconds=seconds,
        price=None if budget.price is None else budget.price * cluster.devices * seconds / _HOUR,
        checkpoint=checkpoint,
        interval=interval,
        lost=1 - work / seconds if seconds else 0.0,
        failures=failures,
        late=budget.deadline is not None and seconds > budget.deadline,
    )
