"""Search over plans: enumerate, filter by memory, cost in closed form, simulate the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ronde.errors import PlanError, UsageError
from ronde.plan import Plan, expand, validate
from ronde.plan.validate import contradictions
from ronde.planner.answer import Answer, InTime, NoFit, RankedPlan
from ronde.planner.candidates import Candidates, Point, kinds_of, plan_of
from ronde.planner.cluster import Cluster
from ronde.planner.enumeration import Fixed, enumerate_candidates, fixed_by
from ronde.planner.estimate import Setting, memory_of, seconds_of, setting_of, simulated
from ronde.planner.graph import CostGraph
from ronde.planner.memory import KINDS, MemoryUse, states
from ronde.planner.modelled import NOT_MODELLED
from ronde.planner.step import StepTime, flops_share
from ronde.planner.traffic import traffic_of
from ronde.planner.training import Budget, TrainingCost, training_cost
from ronde.planner.walls import Wall, walls

__all__ = ["SIMULATED", "fitting", "front", "search"]

SIMULATED = 30
"""The number of best candidates that are simulated."""

# The number of quickest plans among which one is sought that this version can run.
_TRIED = 5000
_GROWTH = 2
_MOST_DEVICES = 65536
_INEXACT = (
    "compressor=fp16",
    "compressor=bf16",
    "compressor=int8",
    "onebit",
    "twobit",
    "dgc",
    "powersgd",
    "local-sgd",
    "decentralized",
    "async-average",
)
# Width of an interval after calibration, relative to the width without.
_CALIBRATED = 0.6
_OUTSIDE = 2.0

Floats = NDArray[np.float64]


def search(
    graph: CostGraph,
    cluster: Cluster,
    base: Plan,
    *,
    keys: Collection[str] = (),
    top: int = 10,
    allow_inexact: bool = False,
    budget: Budget | None = None,
) -> Answer:
    """Rank plans for a model on a cluster.

    Args:
        base: values that all candidates have; those of `keys` are fixed, others searched.
        keys: names of keys that the user has given.
        allow_inexact: whether plans that change the update are ranked as well.
        budget: the length of the whole training, whose time and price each plan has then.

    Raises:
        UsageError: `base` contradicts itself or the number of devices, or leaves no plan.
    """
    devices = cluster.devices
    wrong = contradictions(base, devices)
    if wrong:
        raise PlanError("; ".join(wrong))
    setting = setting_of(cluster, graph, base)
    fixed = fixed_by(base, keys)
    candidates = enumerate_candidates(graph, devices, fixed, cluster.node_size)
    candidates = candidates.take(_consistent(candidates, base))
    if not len(candidates):
        raise UsageError(_none_legal(graph, devices, base, keys))
    places, memory = _fitting(setting, candidates)
    fit = candidates.take(places)
    notes = list(_notes(graph, cluster, base, keys))
    answer = Answer(
        model=graph.name,
        cluster=cluster.name,
        devices=devices,
        batch=graph.batch,
        unit="tokens" if graph.tokens > 1 else "samples",
        parameters=graph.parameters,
        choices=(),
        no_fit=None,
        notes=tuple(notes),
        considered=len(candidates),
        fitting=len(fit),
        sources=cluster.sources,
    )
    if not len(fit):
        return dataclasses.replace(answer, no_fit=_no_fit(setting, candidates, base, fixed))
    closed = seconds_of(setting, candidates)
    best = float(closed.total.min())
    choices = _ranked(setting, fit, closed.take(places), memory, base, top, best)
    if allow_inexact and base.exact:
        inexact = _inexact(setting, fit, memory, base, top)
        choices += inexact
        if not inexact:
            notes.append(
                "no plan that changes the update goes with what is fixed, or fits as copies: try "
                "--plan precision=fp32 [R820]"
            )
    choices = sorted(choices, key=lambda choice: choice.seconds)[:top]
    if budget is not None:
        choices = [_with_training(choice, setting, budget) for choice in choices]
        notes += _budget_notes(cluster, budget)
        if all(choice.training is not None and choice.training.late for choice in choices):
            answer = dataclasses.replace(answer, in_time=_in_time(setting, base, fixed, budget))
    return dataclasses.replace(answer, choices=tuple(choices), notes=tuple(notes))


def _with_training(choice: RankedPlan, setting: Setting, budget: Budget) -> RankedPlan:
    return dataclasses.replace(choice, training=_training(setting, budget, choice.seconds))


def _training(setting: Setting, budget: Budget, step: float) -> TrainingCost:
    graph, software = setting.graph, setting.software
    state = graph.parameters * (software.parameter + software.optimizer)
    return training_cost(setting.cluster, budget, batch=graph.batch, step=step, state=state)


def _budget_notes(cluster: Cluster, budget: Budget) -> Iterator[str]:
    unknown = {
        "price-per-hour": budget.price is None,
        "node-mtbf-hours": cluster.reliability.between is None,
        "checkpoint-gb-s": cluster.reliability.storage is None,
    }
    keys = [key for key, missing in unknown.items() if missing]
    if keys:
        yield (
            f"the cluster file has no {', '.join(keys)}: the price of a training, its failures and its "
            "checkpoints are not counted where their number is missing [R822]"
        )


def _in_time(setting: Setting, base: Plan, fixed: Fixed, budget: Budget) -> InTime:
    """Return the least number of devices that end by the deadline."""
    node = setting.cluster.node_size
    free = dataclasses.replace(fixed, data=None)

    def tried(devices: int) -> InTime | None:
        grown = dataclasses.replace(setting, cluster=setting.cluster.resized(devices))
        found = _quickest(grown, base, free)
        if found is None:
            return None
        plan, seconds = found
        training = _training(grown, budget, seconds)
        return None if training.late else InTime(devices=devices, plan=str(plan), training=training)

    low, high = setting.cluster.devices, setting.cluster.devices
    best = None
    while best is None:
        low, high = high, high * 2
        if high > _MOST_DEVICES:
            return InTime(devices=0)
        best = tried(high)
    nodes_low, nodes_high = low // node, high // node
    while nodes_high - nodes_low > 1:
        middle = (nodes_low + nodes_high) // 2
        found = tried(middle * node)
        if found is None:
            nodes_low = middle
        else:
            nodes_high, best = middle, found
    return best


def _quickest(setting: Setting, base: Plan, fixed: Fixed) -> tuple[Plan, float] | None:
    """Return the quickest plan of this version with its seconds, if one fits."""
    cluster = setting.cluster
    every = enumerate_candidates(setting.graph, cluster.devices, fixed, cluster.node_size)
    fit, _ = fitting(setting, every.take(_consistent(every, base)))
    if not len(fit):
        return None
    closed = seconds_of(setting, fit)
    place = _quickest_that_runs(setting, fit, closed, base)
    return None if place is None else (plan_of(fit.point(place), base), float(closed.total[place]))


def _consistent(candidates: Candidates, base: Plan) -> NDArray[np.bool_]:
    """Return a mask of candidates that do not contradict the user's plan.

    The rules depend on placement, recomputation, and whether batches are cut, all ranks have the same rows,
    and experts are spread.
    """
    cut = candidates.tensor * candidates.pipeline * candidates.context > 1
    keys = (
        candidates.placement,
        candidates.recompute,
        candidates.micro_batches > 1,
        cut & (candidates.data == 1),
        candidates.expert > 1,
    )
    first, kind_of = kinds_of(keys)
    legal: list[bool] = []
    for placement, recompute, pieces, alike, spread in np.array(keys)[:, first].T.tolist():
        point = Point(
            data=1,
            tensor=1 + alike,
            expert=1 + spread,
            placement=placement,
            recompute=recompute,
            micro_batches=1 + pieces,
        )
        legal.append(not contradictions(plan_of(point, base), 2 if alike else None))
    return np.array(legal, dtype=bool)[kind_of]


def fitting(setting: Setting, candidates: Candidates) -> tuple[Candidates, MemoryUse]:
    """Select candidates that fit on their worst rank; also return that rank's memory."""
    places, memory = _fitting(setting, candidates)
    return candidates.take(places), memory


def _fitting(setting: Setting, candidates: Candidates) -> tuple[NDArray[np.int64], MemoryUse]:
    """Return the places of candidates that fit, and their memory.

    The bytes of states alone are a lower bound, which is tried first.
    """
    available = setting.cluster.memory
    parts = states(setting.graph, candidates, setting.software, np.minimum(1, candidates.pipeline - 1))
    maybe = np.flatnonzero(parts[0] + parts[1] + parts[2] <= available)
    memory = memory_of(setting, candidates.take(maybe))
    fits = memory.total <= available
    return maybe[fits], MemoryUse(*(getattr(memory, name)[fits] for name in (*KINDS, "stage")))


def front(seconds: Floats, memory: Floats) -> NDArray[np.bool_]:
    """Return a mask of the Pareto front. No other plan is as quick and smaller, or as small and quicker."""
    order = np.lexsort((memory, seconds))
    least = np.minimum.accumulate(memory[order])
    before = np.concatenate([[np.inf], least[:-1]])
    found = np.zeros(len(seconds), dtype=bool)
    found[order] = memory[order] < before
    return found


def _ranked(
    setting: Setting,
    fit: Candidates,
    closed: StepTime,
    memory: MemoryUse,
    base: Plan,
    top: int,
    best: float,
) -> list[RankedPlan]:
    pareto = front(closed.total, memory.total)
    # The front first, then others, so that near ties are seen.
    ahead = np.flatnonzero(pareto)
    ahead = ahead[np.argsort(closed.total[ahead], kind="stable")]
    behind = np.flatnonzero(~pareto)
    behind = behind[np.argsort(closed.total[behind], kind="stable")]
    chosen = np.concatenate([ahead[:SIMULATED], behind])[: max(SIMULATED, top)]
    ran = simulated(setting, fit.take(chosen), closed.take(chosen), top)
    shown = sorted(zip(ran.tolist(), chosen.tolist(), strict=True))[:top]
    if not any(_runs(setting, fit, place, base) for _, place in shown):
        best_here = _quickest_that_runs(setting, fit, closed, base)
        if best_here is not None:
            one = np.array([best_here])
            seconds = simulated(setting, fit.take(one), closed.take(one))
            shown = [*shown[: top - 1], (float(seconds[0]), best_here)]
    bounds = walls(setting, fit.take(np.array([place for _, place in shown])), best)
    return [
        _choice(setting, fit, place, closed, memory, seconds, base, bound, bool(pareto[place]))
        for (seconds, place), bound in zip(shown, bounds, strict=True)
    ]


def _runs(setting: Setting, fit: Candidates, place: int, base: Plan) -> bool:
    """Return whether this version can run a candidate, by the plan's own rules."""
    return not validate(plan_of(fit.point(place), base), setting.cluster.devices)


def _quickest_that_runs(setting: Setting, fit: Candidates, closed: StepTime, base: Plan) -> int | None:
    order = np.argsort(closed.total, kind="stable")[:_TRIED]
    return next((int(place) for place in order if _runs(setting, fit, int(place), base)), None)


def _choice(  # noqa: PLR0913 - all of one row
    setting: Setting,
    fit: Candidates,
    place: int,
    closed: StepTime,
    memory: MemoryUse,
    seconds: float,
    base: Plan,
    bounds: Sequence[Wall],
    pareto: bool,
) -> RankedPlan:
    graph, cluster = setting.graph, setting.cluster
    point = fit.point(place)
    plan = plan_of(point, base)
    allocated = float(memory.total[place])
    width = _width(setting, point)
    problems = validate(plan, cluster.devices)
    names = ("compute", "exchange", "host", "bubble", "gradients", "optimizer", "loader")
    mfu = flops_share(cluster, graph, setting.software, np.array(seconds), np.array(float(cluster.devices)))
    return RankedPlan(
        plan=str(plan),
        seconds=seconds,
        low=seconds / (1 + width),
        high=seconds * (1 + width),
        per_second=graph.batch * graph.tokens / seconds,
        mfu=float(mfu),
        allocated=allocated,
        reserved=allocated * cluster.reserved,
        kinds={kind: float(getattr(memory, kind)[place]) for kind in KINDS},
        walls=tuple((wall.name, wall.gain) for wall in bounds),
        missing=tuple(problems),
        exact=plan.exact,
        parts={name: float(getattr(closed, name)[place]) for name in names},
        tight=allocated * cluster.reserved > cluster.memory,
        pareto=pareto,
    )


def _width(setting: Setting, point: Point) -> float:
    """Return half the interval's width as a share; wider outside the fitted sizes."""
    cluster = setting.cluster
    width = cluster.uncertainty * (_CALIBRATED if cluster.calibration else 1.0)
    samples = -(-setting.graph.batch // (point.data * point.micro_batches))
    rows = samples * setting.graph.tokens / point.context
    low, high = cluster.batches
    return width * (1.0 if low <= rows <= high else _OUTSIDE)


def _inexact(setting: Setting, fit: Candidates, memory: MemoryUse, base: Plan, top: int) -> list[RankedPlan]:
    """Return the best replicated candidates with compressors and looser updates."""
    alone = (fit.placement == 0) & (fit.pipeline == 1) & (fit.tensor == 1) & (fit.context == 1)
    places = np.flatnonzero(alone)
    if not len(places):
        return []
    some = fit.take(places)
    held = MemoryUse(*(getattr(memory, name)[places] for name in (*KINDS, "stage")))
    found: list[RankedPlan] = []
    for items in _INEXACT:
        asked = expand(items)
        plan = dataclasses.replace(base, communication=asked.communication, update=asked.update)
        theirs = dataclasses.replace(setting, traffic=traffic_of(plan))
        legal = _consistent(some, plan)
        if not legal.any():
            continue
        closed = seconds_of(theirs, some)
        place = int(np.where(legal, closed.total, np.inf).argmin())
        seconds = float(closed.total[place])
        bounds = walls(theirs, some.take(np.array([place])), seconds)[0]
        found.append(_choice(theirs, some, place, closed, held, seconds, plan, bounds, False))
    return sorted(found, key=lambda choice: choice.seconds)[:top]


def _no_fit(setting: Setting, candidates: Candidates, base: Plan, fixed: Fixed) -> NoFit:
    """Return the plan that misses by least, and the smallest cluster where one fits."""
    available = setting.cluster.memory
    memory = memory_of(setting, candidates)
    place = int(memory.total.argmin())
    nearest = plan_of(candidates.point(place), base)
    free = dataclasses.replace(fixed, data=None)
    devices, plan = _smallest(setting, base, free)
    missing = () if plan is None else tuple(validate(plan, devices))
    runs, plan_that_runs = _smallest(setting, base, free, runs=True) if missing else (devices, plan)
    return NoFit(
        nearest=str(nearest),
        kinds={kind: float(getattr(memory, kind)[place]) for kind in KINDS},
        allocated=float(memory.total[place]),
        available=available,
        devices=devices,
        with_plan="" if plan is None else str(plan),
        runs=runs,
        with_plan_that_runs="" if plan_that_runs is None else str(plan_that_runs),
        nearest_missing=tuple(validate(nearest, setting.cluster.devices)),
        with_missing=missing,
    )


def _smallest(setting: Setting, base: Plan, fixed: Fixed, *, runs: bool = False) -> tuple[int, Plan | None]:
    """Return the least number of devices where a plan fits, with the quickest one.

    The number grows in whole nodes.

    Args:
        runs: whether to consider only plans that this version can run.
    """
    node = setting.cluster.node_size
    if runs and validate(base):
        return 0, None

    def best(devices: int) -> Plan | None:
        grown = dataclasses.replace(setting, cluster=setting.cluster.resized(devices))
        every = enumerate_candidates(setting.graph, devices, fixed, node)
        fit, _ = fitting(grown, every.take(_consistent(every, base)))
        if not len(fit):
            return None
        order = np.argsort(seconds_of(grown, fit).total, kind="stable")
        plans = (plan_of(fit.point(int(place)), base) for place in (order[:_TRIED] if runs else order[:1]))
        return next((plan for plan in plans if not runs or not validate(plan, devices)), None)

    low, high = setting.cluster.devices, setting.cluster.devices
    found = None
    while found is None:
        low, high = high, high * _GROWTH
        if high > _MOST_DEVICES:
            return 0, None
        found = best(high)
    for devices in range(-(-(low + 1) // node) * node, high, node):
        plan = best(devices)
        if plan is not None:
            return devices, plan
    return high, found


def _none_legal(graph: CostGraph, devices: int, base: Plan, keys: Collection[str]) -> str:
    asked = [base.item(key) for key in keys if base.value(key) is not None]
    under = f" with {','.join(asked)}" if asked else ""
    return (
        f"no plan{under} gives each of {devices} devices a sample of each micro-batch, of a batch of "
        f"{graph.batch}, and a layer of {graph.layers}; take fewer --devices, a larger --batch, or leave out "
        "keys of --plan [R801]"
    )


def _notes(graph: CostGraph, cluster: Cluster, base: Plan, keys: Collection[str]) -> Iterator[str]:
    if cluster.calibration:
        host = cluster.host_factor
        apart = "" if host == cluster.factor else f", the host's times {host:.3f}"
        yield f"calibrated by {cluster.calibration}: seconds are times {cluster.factor:.3f}{apart} [R817]"
    devices = cluster.devices
    if graph.batch < devices:
        yield f"a batch of {graph.batch} has fewer samples than there are devices ({devices}) [R818]"
    elif graph.batch % devices:
        nearest = max(1, round(graph.batch / devices)) * devices
        yield (
            f"a batch of {graph.batch} does not divide over {devices} devices, some ranks have one sample "
            f"more; the nearest that does is {nearest} [R818]"
        )
    if graph.loss_apart and devices > 1 and graph.layers > 1:
        yield (
            f"{graph.name} computes its loss behind the model, so pipelines run schedule=gpipe; have the "
            "model return its loss, or train by ronde.Step, for other schedules [R823]"
        )
    for key in keys:
        if key in NOT_MODELLED:
            yield f"{base.item(key)} has no cost in the model: {NOT_MODELLED[key]} [R819]"
    if len({group.device.name for group in cluster.groups}) > 1:
        yield "devices differ: seconds are those of the slowest, memory that of the smallest [R821]"
