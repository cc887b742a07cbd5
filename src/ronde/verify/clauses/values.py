"""L3: what the script reads on the host, and the gradient norms before each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy

from ronde.verify.clauses.text import differing_number
from ronde.verify.clauses.verdict import Tolerance, Verdict, verdict
from ronde.verify.record import Gradients, RankRecord, Read

__all__ = ["compare", "norm_difference"]


def compare(plain: RankRecord, ranks: Sequence[RankRecord], tolerance: Tolerance) -> Verdict:
    scales = _scales(plain)
    divergence: str | None = None
    for rank in ranks:
        divergence = (
            divergence or _reads(plain, rank, scales, tolerance) or _gradients(plain, rank, tolerance)
        )
    norms = sum(len(each.norms) for each in plain.gradients)
    compared = f"{len(plain.reads)} values, {norms} gradient norms"
    return verdict("L3", "values", count=len(plain.reads) + norms, compared=compared, divergence=divergence)


def _scales(plain: RankRecord) -> dict[tuple[str, str, bool], float]:
    """The largest magnitude that each line read: a loss that falls to nought keeps its noise.

    Of whole numbers and others apart, or a count beside it would widen what a loss is allowed.
    """
    scales: dict[tuple[str, str, bool], float] = {}
    for read in plain.reads:
        magnitude = 0.0
        if read.stored is not None:
            entries = plain.entries(read.stored)
            if entries.dtype.kind in "fciu" and entries.size:
                finite = numpy.abs(entries[numpy.isfinite(entries)])
                magnitude = float(finite.max(initial=0.0))
        elif _is_number(read.value) and math.isfinite(read.value):
            magnitude = abs(read.value)
        key = (read.where, read.call, _is_whole(plain, read))
        scales[key] = max(scales.get(key, 0.0), magnitude)
    return scales


def _reads(
    plain: RankRecord, rank: RankRecord, scales: dict[tuple[str, str, bool], float], tolerance: Tolerance
) -> str | None:
    for number, (read, expected) in enumerate(zip(rank.reads, plain.reads, strict=False), 1):
        if (read.where, read.call) != (expected.where, expected.call):
            return None  # another path through the script: L4 speaks of that
        scale = scales[expected.where, expected.call, _is_whole(plain, expected)]
        wrong = _different(rank, read, plain, expected, scale, tolerance)
        if wrong:
            return f"rank {rank.rank}, {read.where}, {read.call} (value {number}): {wrong}"
    return None


def _different(
    rank: RankRecord, read: Read, plain: RankRecord, expected: Read, scale: float, tolerance: Tolerance
) -> str | None:
    if read.stored is not None and expected.stored is not None:
        if read.stored.shape != expected.stored.shape or read.stored.dtype != expected.stored.dtype:
            return (
                f"{read.stored.dtype} {read.stored.shape}, "
                f"in plain python {expected.stored.dtype} {expected.stored.shape}"
            )
        return _different_entries(rank.entries(read.stored), plain.entries(expected.stored), scale, tolerance)
    mine, reference = read.value, expected.value
    if type(mine) is not type(reference):
        return f"{mine!r}, in plain python {reference!r}"
    if isinstance(reference, str):
        # Formatted: what was printed may turn at its last digit.
        return None if differing_number(mine, reference, tolerance) is None else _pair(mine, reference)
    if isinstance(reference, list):
        pairs = zip(mine, reference, strict=False)
        return None if all(tolerance.close(a, b, scale) for a, b in pairs) else _pair(mine, reference)
    if isinstance(reference, float):
        return None if tolerance.close(mine, reference, scale) else _pair(mine, reference)
    if _is_number(reference):
        return None if tolerance.close_whole(mine, reference, scale) else _pair(mine, reference)
    return None if mine == reference else _pair(mine, reference)


def _is_whole(plain: RankRecord, read: Read) -> bool:
    if read.stored is not None:
        return plain.entries(read.stored).dtype.kind in "iu"
    return isinstance(read.value, int)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _different_entries(
    mine: numpy.ndarray, reference: numpy.ndarray, scale: float, tolerance: Tolerance
) -> str | None:
    if reference.dtype.kind not in "fc":
        wrong = tolerance.wrong_whole(mine, reference, scale)
    else:
        same = (mine == reference) | ((mine != mine) & (reference != reference))
        with numpy.errstate(invalid="ignore"):
            wrong = ~same & ~(numpy.abs(mine - reference) <= tolerance.values * scale)
    if not wrong.any():
        return None
    first = int(numpy.flatnonzero(wrong)[0])
    return f"entry {first} of {wrong.size}: {_pair(mine[first], reference[first])}"


def _pair(mine: object, reference: object) -> str:
    return f"{mine}, in plain python {reference}"


def _gradients(plain: RankRecord, rank: RankRecord, tolerance: Tolerance) -> str | None:
    for mine, expected in zip(rank.gradients, plain.gradients, strict=False):
        whole = _whole_norm(expected)
        for name, norm in expected.norms.items():
            if name not in mine.norms:
                continue  # L2 names parameters that are not there
            other = mine.norms[name]
            if norm is None or other is None:
                # A gradient of noughts does what no gradient does, but for weight decay and momentum.
                if norm is not other:
                    return (
                        f"rank {rank.rank}, step {expected.step}, gradient of {name}: "
                        f"{_pair(_norm_text(other), _norm_text(norm))}"
                    )
            elif not tolerance.close_norm(other, norm, whole):
                return (
                    f"rank {rank.rank}, step {expected.step}, gradient norm of {name}: {_pair(other, norm)}"
                )
    return None


def norm_difference(run: RankRecord, reference: RankRecord) -> float:
    """The largest difference of a gradient's norm, over steps, relative to that of all gradients."""
    found = 0.0
    for mine, expected in zip(run.gradients, reference.gradients, strict=False):
        whole = _whole_norm(expected)
        for name, norm in expected.norms.items():
            other = mine.norms.get(name)
            if norm is not None and other is not None and whole:
                apart = abs(other - norm) / whole
                found = max(found, apart) if math.isfinite(apart) else found
    return found


def _norm_text(norm: float | None) -> str:
    return "none" if norm is None else f"of norm {norm}"


def _whole_norm(gradients: Gradients) -> float:
    squares = sum(
        norm * norm for norm in gradients.norms.values() if norm is not None and math.isfinite(norm)
    )
    return math.sqrt(squares)
