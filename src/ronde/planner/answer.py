"""The answer of a search, and its JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from ronde.planner.training import TrainingCost

__all__ = ["Answer", "InTime", "NoFit", "RankedPlan"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankedPlan:
    """One ranked plan.

    Attributes:
        plan: the text for `ronde run --plan`.
        seconds, low, high: seconds of a step, and the interval in which they are expected.
        per_second: tokens or samples per second.
        mfu: FLOPs of the step, without recomputation, over the peak FLOPs of the devices.
        allocated, reserved: bytes of the worst rank.
        kinds: bytes of `allocated` by kind.
        walls: name and gain of each bottleneck, the largest first.
        missing: the reasons for which this version cannot run it; empty if it can.
        exact: whether it keeps the single-device update.
        parts: seconds by part of the step.
        tight: whether the memory that the allocator usually reserves would not fit.
        pareto: whether no other plan is both quicker and smaller.
        training: time and price of the whole training; None where its length is not given.
    """

    plan: str
    seconds: float
    low: float
    high: float
    per_second: float
    mfu: float
    allocated: float
    reserved: float
    kinds: Mapping[str, float]
    walls: tuple[tuple[str, float], ...]
    missing: tuple[str, ...]
    exact: bool
    parts: Mapping[str, float]
    tight: bool
    pareto: bool
    training: TrainingCost | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NoFit:
    """Result of a search in which no plan fits.

    Attributes:
        nearest: the plan that misses by least. `kinds`, `allocated` and `available` are its bytes by kind,
            their sum, and the memory of a device.
        devices: the number of the cluster's devices that would suffice; 0 where even the largest tried would
            not.
        with_plan: the plan that fits there.
        runs: the number that would suffice for plans that this version can run; 0 like `devices`.
        with_plan_that_runs: the plan that fits on that number.
        nearest_missing, with_missing: the reasons for which this version cannot run the first two plans.
    """

    nearest: str
    kinds: Mapping[str, float]
    allocated: float
    available: float
    devices: int
    with_plan: str
    runs: int
    with_plan_that_runs: str
    nearest_missing: tuple[str, ...]
    with_missing: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class InTime:
    """Devices that suffice for a deadline, and their quickest plan.

    Attributes:
        devices: the least number of whole nodes; 0 where no number that was tried would do.
    """

    devices: int
    plan: str = ""
    training: TrainingCost | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The whole output of `ronde plan search`.

    Attributes:
        unit: the unit of `per_second`: "tokens" or "samples".
        choices: plans, the best first; empty where none fits.
        no_fit: the result where no plan fits, else None.
        notes: sentences for the user to read beside the table.
        considered, fitting: the numbers of candidates.
        in_time: more devices that would do, where no plan ends by the deadline.
    """

    model: str
    cluster: str
    devices: int
    batch: int
    unit: str
    parameters: float
    choices: tuple[RankedPlan, ...]
    no_fit: NoFit | None
    notes: tuple[str, ...]
    considered: int
    fitting: int
    sources: Mapping[str, str]
    in_time: InTime | None = None

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"
