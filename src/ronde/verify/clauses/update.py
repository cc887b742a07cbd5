"""L2: parameters after every optimizer step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy

from ronde.verify.clauses.verdict import DUST, Tolerance, Verdict, verdict
from ronde.verify.record import RankRecord, Step

__all__ = ["compare", "vector_difference"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Difference:
    """Of one step: the worst tensor, and the vector of all parameters."""

    name: str
    largest: float
    vector: float


def compare(plain: RankRecord, ranks: Sequence[RankRecord], tolerance: Tolerance) -> Verdict:
    found = [_first(plain, rank, tolerance) for rank in ranks]
    worst = max((each.worst for each in found), default=0.0)
    broken = [each for each in found if each.text]
    divergence = min(broken, key=lambda each: each.step).text if broken else None
    count = len(plain.steps)
    names = {name for step in plain.steps for name in step.parameters}
    sampled = any(each.stride > 1 for step in plain.steps[:1] for each in step.parameters.values())
    compared = f"{len(names)} parameters after {count} steps" + (" (large ones sampled)" if sampled else "")
    return verdict(
        "L2", "update", count=count, compared=compared, divergence=divergence, worst=worst if count else None
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """Of one rank: the step and description of its first divergence, and the worst difference up to it."""

    step: int
    text: str
    worst: float


def _first(plain: RankRecord, rank: RankRecord, tolerance: Tolerance) -> _Found:
    worst = 0.0
    for step, expected in zip(rank.steps, plain.steps, strict=False):
        where = f"rank {rank.rank}, step {expected.step} ({expected.optimizer})"
        wrong = _layout(step, expected)
        if wrong:
            return _Found(step=expected.step, text=f"{where}: {wrong}", worst=worst)
        difference = _difference(rank, step, plain, expected)
        size = difference.largest if tolerance.per_tensor else difference.vector
        worst = max(worst, size)
        if not size <= tolerance.parameters:
            text = f"{where}, parameter {difference.name}: {difference.largest:.1e} of its largest entry"
            if not tolerance.per_tensor:
                text += f", {difference.vector:.1e} of the vector of all"
            text += f" (allowed {tolerance.parameters:.1e})"
            return _Found(step=expected.step, text=text, worst=worst)
    text = ""
    if len(rank.steps) != len(plain.steps):
        text = f"rank {rank.rank}: {len(rank.steps)} steps, in plain python {len(plain.steps)}"
    return _Found(step=min(len(rank.steps), len(plain.steps)), text=text, worst=worst)


def vector_difference(run: RankRecord, reference: RankRecord) -> float:
    """The largest relative difference, over steps, of the vector of all parameters."""
    return max(
        (
            _difference(run, mine, reference, other).vector
            for mine, other in zip(run.steps, reference.steps, strict=False)
        ),
        default=0.0,
    )


def _layout(step: Step, expected: Step) -> str | None:
    if step.optimizer != expected.optimizer:
        return f"a step of {step.optimizer}"
    if list(step.parameters) != list(expected.parameters):
        odd = sorted(set(step.parameters) ^ set(expected.parameters)) or ["their order"]
        return f"other parameters than in plain python: {', '.join(odd[:3])}"
    for name, stored in step.parameters.items():
        other = expected.parameters[name]
        if (stored.shape, stored.dtype) != (other.shape, other.dtype):
            mine = f"parameter {name} is {stored.dtype} {stored.shape}"
            return f"{mine}, in plain python {other.dtype} {other.shape}"
    return None


def _difference(rank: RankRecord, step: Step, plain: RankRecord, expected: Step) -> _Difference:
    worst_name, worst = "", -1.0
    squares = reference_squares = 0.0
    references = {name: _wide(plain.entries(stored)) for name, stored in expected.parameters.items()}
    dust = DUST * max((_largest(reference) for reference in references.values()), default=0.0)
    for name, stored in step.parameters.items():
        mine, reference = _wide(rank.entries(stored)), references[name]
        # Where plain python has an infinity or a not-a-number, the same one is no difference.
        same = (mine == reference) | (numpy.isnan(mine) & numpy.isnan(reference))
        with numpy.errstate(invalid="ignore"):
            apart = numpy.where(same, 0.0, numpy.abs(mine - reference))
        apart = numpy.where(numpy.isfinite(apart), apart, math.inf)
        finite = numpy.abs(reference[numpy.isfinite(reference)])
        largest = float(apart.max(initial=0.0))
        scale = max(float(finite.max(initial=0.0)), dust)
        relative = 0.0 if largest == 0.0 else (largest / scale if scale else math.inf)
        if relative > worst:
            worst_name, worst = name, relative
        squares += float(apart @ apart)
        reference_squares += float(finite @ finite)
    norm = math.sqrt(reference_squares)
    vector = math.sqrt(squares) / norm if norm else (math.inf if squares else 0.0)
    return _Difference(name=worst_name, largest=max(worst, 0.0), vector=vector)


def _largest(entries: numpy.ndarray) -> float:
    return float(numpy.abs(entries[numpy.isfinite(entries)]).max(initial=0.0))


def _wide(entries: numpy.ndarray) -> numpy.ndarray:
    if numpy.iscomplexobj(entries):
        entries = entries.astype(numpy.complex128).view(numpy.float64)
    return entries.astype(numpy.float64)
