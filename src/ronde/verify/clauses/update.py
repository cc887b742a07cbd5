"""L2: parameters after every optimizer step."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy

from ronde.verify.clauses.verdict import DUST, ClauseVerdict, Tolerance, verdict
from ronde.verify.record import RankRecord, StepFingerprint

__all__ = ["Differences", "compare", "differences", "differing_layout"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Difference:
    """Relative differences after one step, by tensor and over all tensors."""

    tensors: dict[str, float]
    shares: dict[str, float]
    vector: float

    @property
    def name(self) -> str:
        """The worst tensor."""
        return max(self.tensors, key=lambda name: self.tensors[name], default="")

    @property
    def largest(self) -> float:
        return max(self.tensors.values(), default=0.0)


def compare(plain: RankRecord, ranks: Sequence[RankRecord], tolerance: Tolerance) -> ClauseVerdict:
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
    """The first divergence of one rank, and the worst difference up to it."""

    step: int
    text: str
    worst: float


def _first(plain: RankRecord, rank: RankRecord, tolerance: Tolerance) -> _Found:
    worst = 0.0
    for step, expected in zip(rank.steps, plain.steps, strict=False):
        where = f"rank {rank.rank}, step {expected.step} ({expected.optimizer})"
        wrong = differing_layout(step, expected)
        if wrong:
            return _Found(step=expected.step, text=f"{where}: {wrong}", worst=worst)
        difference = _difference(rank, step, plain, expected)
        size = difference.largest if tolerance.per_tensor else difference.vector
        worst = max(worst, size)
        name, allowed = _beyond(difference, tolerance, expected.step)
        if not name:
            continue
        text = f"{where}, parameter {name}: {difference.tensors[name]:.1e} of its largest entry"
        if not tolerance.per_tensor:
            text += f", {difference.vector:.1e} of the vector of all"
        return _Found(step=expected.step, text=f"{text} (allowed {allowed:.1e})", worst=worst)
    text = ""
    if len(rank.steps) != len(plain.steps):
        text = f"rank {rank.rank}: {len(rank.steps)} steps, in plain python {len(plain.steps)}"
    return _Found(step=min(len(rank.steps), len(plain.steps)), text=text, worst=worst)


def _beyond(difference: _Difference, tolerance: Tolerance, step: int) -> tuple[str, float]:
    """Name the tensor beyond its tolerance, with that tolerance; "" if all agree."""
    if not tolerance.per_tensor:
        if difference.vector <= tolerance.parameters:
            return "", tolerance.parameters
        beyond = [
            name for name, share in difference.shares.items() if not share <= tolerance.of_share(name, step)
        ]
        name = max(beyond, key=lambda each: difference.shares[each], default="")
        return name, tolerance.of_share(name, step)
    beyond = [
        name
        for name, relative in difference.tensors.items()
        if not relative <= tolerance.of_tensor(name, step)
    ]
    name = max(beyond, key=lambda each: difference.tensors[each], default="")
    return name, tolerance.of_tensor(name, step)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Differences:
    """Running maxima of relative differences, one for each step.

    Attributes:
        vector: distance of the vector of all parameters, relative to its length.
        shares: distance of one parameter, relative to the length of that vector, by name.
        tensors: difference of one parameter, relative to its largest entry, by name.
    """

    vector: tuple[float, ...]
    shares: dict[str, tuple[float, ...]]
    tensors: dict[str, tuple[float, ...]]


def differences(run: RankRecord, reference: RankRecord) -> Differences:
    """Compute the differences of two runs, until they step other parameters."""
    pairs = itertools.takewhile(
        lambda pair: differing_layout(*pair) is None, zip(run.steps, reference.steps, strict=False)
    )
    found = [_difference(run, mine, reference, other) for mine, other in pairs]
    return Differences(
        vector=tuple(itertools.accumulate((each.vector for each in found), max)),
        shares=_largest_so_far([each.shares for each in found]),
        tensors=_largest_so_far([each.tensors for each in found]),
    )


def _largest_so_far(steps: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, ...]]:
    names = {name for step in steps for name in step}
    return {name: tuple(itertools.accumulate((step.get(name, 0.0) for step in steps), max)) for name in names}


def differing_layout(step: StepFingerprint, expected: StepFingerprint) -> str | None:
    """Describe how the parameters of two steps differ; None if they match."""
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


def _difference(
    rank: RankRecord, step: StepFingerprint, plain: RankRecord, expected: StepFingerprint
) -> _Difference:
    tensors: dict[str, float] = {}
    lengths: dict[str, float] = {}
    squares = reference_squares = 0.0
    references = {name: _wide(plain.entries(stored)) for name, stored in expected.parameters.items()}
    dust = DUST * max((_largest(reference) for reference in references.values()), default=0.0)
    for name, stored in step.parameters.items():
        mine, reference = _wide(rank.entries(stored)), references[name]
        # Where plain python has an infinity or a not-a-number, the same one does not differ.
        same = (mine == reference) | (numpy.isnan(mine) & numpy.isnan(reference))
        with numpy.errstate(invalid="ignore"):
            apart = numpy.where(same, 0.0, numpy.abs(mine - reference))
        apart = numpy.where(numpy.isfinite(apart), apart, math.inf)
        finite = numpy.abs(reference[numpy.isfinite(reference)])
        largest = float(apart.max(initial=0.0))
        scale = max(float(finite.max(initial=0.0)), dust)
        tensors[name] = 0.0 if largest == 0.0 else (largest / scale if scale else math.inf)
        lengths[name] = float(apart @ apart)
        squares += lengths[name]
        reference_squares += float(finite @ finite)
    norm = math.sqrt(reference_squares)

    def share(square: float) -> float:
        return math.sqrt(square) / norm if norm else (math.inf if square else 0.0)

    shares = {name: share(square) for name, square in lengths.items()}
    return _Difference(tensors=tensors, shares=shares, vector=share(squares))


def _largest(entries: numpy.ndarray) -> float:
    return float(numpy.abs(entries[numpy.isfinite(entries)]).max(initial=0.0))


def _wide(entries: numpy.ndarray) -> numpy.ndarray:
    if numpy.iscomplexobj(entries):
        entries = entries.astype(numpy.complex128).view(numpy.float64)
    return entries.astype(numpy.float64)
