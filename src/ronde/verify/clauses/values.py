"""L3: values that the script reads on the host, and gradient norms."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy

from ronde.verify.clauses.noise import Site
from ronde.verify.clauses.text import differing_number
from ronde.verify.clauses.verdict import ClauseVerdict, Tolerance, verdict
from ronde.verify.record import Gradients, RankRecord, Read

__all__ = ["compare", "norm_differences", "value_differences"]


def compare(plain: RankRecord, ranks: Sequence[RankRecord], tolerance: Tolerance) -> ClauseVerdict:
    scales = _scales(plain)
    found = [
        divergence
        for rank in ranks
        for divergence in (_reads(plain, rank, scales, tolerance), _gradients(plain, rank, tolerance))
        if divergence is not None
    ]
    divergence = min(found, key=lambda each: each.time).text if found else None
    norms = sum(len(each.norms) for each in plain.gradients)
    compared = f"{len(plain.reads)} values, {norms} gradient norms"
    return verdict("L3", "values", count=len(plain.reads) + norms, compared=compared, divergence=divergence)


@dataclasses.dataclass(frozen=True, slots=True)
class _Divergence:
    """First difference of a rank.

    `time` is in optimizer steps: gradients of the third step have 2.5, values read after it 3.
    """

    time: float
    text: str


def _scales(plain: RankRecord) -> dict[Site, float]:
    """Return the largest magnitude read at each line.

    A loss that falls to zero keeps its noise. Whole numbers and others are kept apart, or a count beside a
    loss would widen the loss's bound.
    """
    scales: dict[Site, float] = {}
    for read in plain.reads:
        magnitude = 0.0
        if read.stored is not None:
            entries = plain.entries(read.stored)
            if entries.dtype.kind in "fciu" and entries.size:
                finite = numpy.abs(entries[numpy.isfinite(entries)])
                magnitude = float(finite.max(initial=0.0))
        elif _is_number(read.value) and math.isfinite(read.value):
            magnitude = abs(read.value)
        key = _site(plain, read)
        scales[key] = max(scales.get(key, 0.0), magnitude)
    return scales


def _reads(
    plain: RankRecord, rank: RankRecord, scales: dict[Site, float], tolerance: Tolerance
) -> _Divergence | None:
    for number, (read, expected) in enumerate(zip(rank.reads, plain.reads, strict=False), 1):
        if (read.where, read.call) != (expected.where, expected.call):
            return None  # another path through the script, which L4 reports
        site = _site(plain, expected)
        allowed = _Allowed(tolerance, scales[site], tolerance.noise.values.get(site, 0.0))
        wrong = _different(rank, read, plain, expected, allowed)
        if wrong:
            text = f"rank {rank.rank}, {read.where}, {read.call} (value {number}): {wrong}"
            return _Divergence(expected.step, text)
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class _Allowed:
    """Bounds for the values of one line: largest magnitude, and noise of twins."""

    tolerance: Tolerance
    scale: float
    noise: float

    def close(self, value: float, reference: float) -> bool:
        return self.tolerance.close(value, reference, self.scale, self.noise)


def _different(
    rank: RankRecord, read: Read, plain: RankRecord, expected: Read, allowed: _Allowed
) -> str | None:
    if read.stored is not None and expected.stored is not None:
        if read.stored.shape != expected.stored.shape or read.stored.dtype != expected.stored.dtype:
            return (
                f"{read.stored.dtype} {read.stored.shape}, "
                f"in plain python {expected.stored.dtype} {expected.stored.shape}"
            )
        return _different_entries(rank.entries(read.stored), plain.entries(expected.stored), allowed)
    mine, reference = read.value, expected.value
    if type(mine) is not type(reference):
        return f"{mine!r}, in plain python {reference!r}"
    if isinstance(reference, str):
        # A formatted number, whose last digit rounding may change.
        agrees = differing_number(mine, reference, allowed.tolerance) is None
        return None if agrees or _is_close_text(mine, reference, allowed) else _pair(mine, reference)
    if isinstance(reference, list):
        pairs = zip(mine, reference, strict=False)
        return None if all(allowed.close(a, b) for a, b in pairs) else _pair(mine, reference)
    if isinstance(reference, float):
        return None if allowed.close(mine, reference) else _pair(mine, reference)
    if _is_number(reference):
        agrees = allowed.tolerance.close_whole(mine, reference, allowed.scale, allowed.noise)
        return None if agrees else _pair(mine, reference)
    return None if mine == reference else _pair(mine, reference)


def _is_whole(plain: RankRecord, read: Read) -> bool:
    if read.stored is not None:
        return plain.entries(read.stored).dtype.kind in "iu"
    return isinstance(read.value, int)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_close_text(mine: str, reference: str, allowed: _Allowed) -> bool:
    """Return whether two formatted values are numbers that agree within the noise of twins."""
    try:
        return allowed.noise > 0.0 and allowed.close(float(mine), float(reference))
    except ValueError:
        return False


def _different_entries(mine: numpy.ndarray, reference: numpy.ndarray, allowed: _Allowed) -> str | None:
    tolerance, scale, noise = allowed.tolerance, allowed.scale, allowed.noise
    if reference.dtype.kind not in "fc":
        wrong = tolerance.wrong_whole(mine, reference, scale, noise)
    else:
        same = (mine == reference) | ((mine != mine) & (reference != reference))
        apart = max(tolerance.values * scale, tolerance.thrice(noise))
        with numpy.errstate(invalid="ignore"):
            wrong = ~same & ~(numpy.abs(mine - reference) <= apart)
    if not wrong.any():
        return None
    first = int(numpy.flatnonzero(wrong)[0])
    return f"entry {first} of {wrong.size}: {_pair(mine[first], reference[first])}"


def _pair(mine: object, reference: object) -> str:
    return f"{mine}, in plain python {reference}"


def _gradients(plain: RankRecord, rank: RankRecord, tolerance: Tolerance) -> _Divergence | None:
    for mine, expected in zip(rank.gradients, plain.gradients, strict=False):
        whole = _whole_norm(expected)
        for name, norm in expected.norms.items():
            if name not in mine.norms:
                continue  # L2 reports missing parameters
            other = mine.norms[name]
            if norm is None or other is None:
                # A gradient of zeros acts like an absent gradient, but for weight decay and momentum.
                close = norm is other
                wrong = f"gradient of {name}: {_pair(_norm_text(other), _norm_text(norm))}"
            else:
                close = tolerance.close_norm(other, norm, whole, expected.step)
                wrong = f"gradient norm of {name}: {_pair(other, norm)}"
            if not close:
                return _Divergence(expected.step - 0.5, f"rank {rank.rank}, step {expected.step}, {wrong}")
    return None


def norm_differences(run: RankRecord, reference: RankRecord) -> tuple[float, ...]:
    """Return the largest difference of a gradient norm so far, before each step.

    It is relative to the norm of all gradients.
    """
    found: list[float] = []
    largest = 0.0
    for mine, expected in zip(run.gradients, reference.gradients, strict=False):
        whole = _whole_norm(expected)
        for name, norm in expected.norms.items():
            other = mine.norms.get(name)
            if norm is not None and other is not None and whole:
                apart = abs(other - norm) / whole
                largest = max(largest, apart) if math.isfinite(apart) else largest
        found.append(largest)
    return tuple(found)


def value_differences(run: RankRecord, reference: RankRecord) -> dict[Site, float]:
    """Return the largest difference at each line, until the runs read at different lines."""
    found: dict[Site, float] = {}
    for mine, other in zip(run.reads, reference.reads, strict=False):
        if (mine.where, mine.call) != (other.where, other.call):
            break
        one, two = _entries(run, mine), _entries(reference, other)
        if one is not None and two is not None and one.shape == two.shape:
            apart = numpy.abs(one - two)
            largest = float(apart[numpy.isfinite(apart)].max(initial=0.0))
            site = _site(reference, other)
            found[site] = max(found.get(site, 0.0), largest)
    return found


def _entries(record: RankRecord, read: Read) -> numpy.ndarray | None:
    """Return the values that were read as floats; None for other types."""
    if read.stored is not None:
        entries = record.entries(read.stored)
        wide = numpy.complex128 if entries.dtype.kind == "c" else numpy.float64
        return entries.astype(wide) if entries.dtype.kind in "fciu" else None
    try:
        return None if isinstance(read.value, bool) else numpy.asarray(read.value, dtype=numpy.float64)
    except (TypeError, ValueError):
        return None


def _site(plain: RankRecord, read: Read) -> Site:
    return read.where, read.call, _is_whole(plain, read)


def _norm_text(norm: float | None) -> str:
    return "none" if norm is None else f"of norm {norm}"


def _whole_norm(gradients: Gradients) -> float:
    squares = sum(
        norm * norm for norm in gradients.norms.values() if norm is not None and math.isfinite(norm)
    )
    return math.sqrt(squares)
