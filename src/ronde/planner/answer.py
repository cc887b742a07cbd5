"""What a search answers, and its JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

__all__ = ["Answer", "Choice", "NoFit"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One ranked plan.

    Attributes:
        plan: as `ronde run --plan` takes it.
        seconds, low, high: of a step, and the interval in which it is expected.
        per_second: tokens or samples.
        mfu: FLOPs of the step, nothing counted twice, over what the devices could do.
        allocated, reserved: bytes of the worst rank.
        kinds: of `allocated`, bytes by kind.
        walls: name and gain, the largest first.
        missing: what keeps this version from running it; empty if it can.
        exact: whether it keeps the single-device update.
        parts: seconds by what they go to.
        tight: whether what the allocator usually reserves would not fit.
        pareto: whether no other plan is both quicker and smaller.
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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NoFit:
    """Nothing fits.

    Attributes:
        nearest: the plan that misses by least, its bytes by kind, and what a device has.
        devices: how many of the cluster's devices would do; 0 where not even the largest tried would.
        with_plan: the plan that fits there.
        runs: how many would do for plans that this version can run; 0 as above.
        with_plan_that_runs: that plan.
        nearest_missing, with_missing: what keeps this version from running the first two plans.
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
class Answer:
    """All that `ronde plan search` tells.

    Attributes:
        unit: of `per_second`: "tokens" or "samples".
        choices: the best first; empty where nothing fits.
        no_fit: then.
        notes: sentences that the user should read beside the table.
        considered, fitting: candidates.
    """

    model: str
    cluster: str
    devices: int
    batch: int
    unit: str
    parameters: float
    choices: tuple[Choice, ...]
    no_fit: NoFit | None
    notes: tuple[str, ...]
    considered: int
    fitting: int
    sources: Mapping[str, str]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"
