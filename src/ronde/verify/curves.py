"""Loss curves of a proof: values read at one line, plain and on ranks."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path

from ronde.verify.clauses.verdict import Tolerance
from ronde.verify.record import RankRecord, Read

__all__ = ["Curve", "loss_curves"]

MOST_CURVES = 3
GRADIENTS = "norm of all gradients"
_LOSS = re.compile(r"loss|nll|perplexity|objective", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Values that one line of the script read again and again.

    Attributes:
        name: the line that read it, with its source.
        steps: optimizer steps taken when it was read.
        plain, ranks: its values in plain python and on rank 0.
        differences: the largest difference of any rank from plain python, for each reading.
        allowed: the difference that the law allows.
    """

    name: str
    steps: tuple[int, ...]
    plain: tuple[float, ...]
    ranks: tuple[float, ...]
    differences: tuple[float, ...]
    allowed: float

    @property
    def worst(self) -> float:
        return max(self.differences)


def loss_curves(
    plain: RankRecord, ranks: Sequence[RankRecord], tolerance: Tolerance, directory: Path
) -> tuple[Curve, ...]:
    """Return the curves of lines that read a loss, the most frequent first.

    In a script without such lines it is the number that it reads most often; in one that reads none, the norm
    of all gradients at each step.
    """
    if not ranks:
        return ()
    series = _series(plain)
    named = {where: _source(directory, where) for where in series}
    losses = [where for where in series if _LOSS.search(named[where])]
    chosen = sorted(losses or series, key=lambda where: -len(series[where]))
    per_rank = [_series(rank) for rank in ranks]
    curves = [
        _curve(
            f"{where}  {named[where]}".rstrip(),
            series[where],
            [each.get(where) for each in per_rank],
            tolerance,
        )
        for where in chosen[: MOST_CURVES if losses else 1]
    ]
    found = [curve for curve in curves if curve is not None]
    if not found:
        norms = _curve(GRADIENTS, _gradients(plain), [_gradients(rank) for rank in ranks], tolerance)
        found = [norms] if norms is not None else []
    return tuple(found)


_Points = list[tuple[int, float]]


def _curve(name: str, plain: _Points, ranks: Sequence[_Points | None], tolerance: Tolerance) -> Curve | None:
    """Return the curve over the readings common to all runs; None without any."""
    count = min(len(plain), *(len(points or ()) for points in ranks))
    if not count:
        return None
    values = [value for _, value in plain[:count]]
    others = [[value for _, value in points[:count]] for points in ranks if points]
    scale = max(abs(value) for value in values)
    return Curve(
        name=name,
        steps=tuple(step for step, _ in plain[:count]),
        plain=tuple(values),
        ranks=tuple(others[0]),
        differences=tuple(
            max(abs(other[place] - value) for other in others) for place, value in enumerate(values)
        ),
        allowed=tolerance.values * scale,
    )


def _series(record: RankRecord) -> dict[str, _Points]:
    """Return the finite floats that each line of the script read, with their steps.

    A line that reads several in turn has one series.
    """
    series: dict[str, _Points] = {}
    for read in record.reads:
        value = _number(read, record)
        if value is not None:
            series.setdefault(read.where, []).append((read.step, value))
    return series


def _number(read: Read, record: RankRecord) -> float | None:
    """Return a finite floating-point value; None for counts and others."""
    value = read.value
    if isinstance(value, str):  # formatted
        try:
            value = float(value)
        except ValueError:
            return None
    elif read.stored is not None and read.stored.count == 1 and read.stored.dtype[1] == "f":
        value = float(record.entries(read.stored)[0])
    return value if isinstance(value, float) and math.isfinite(value) else None


def _gradients(record: RankRecord) -> _Points:
    return [
        (each.step, math.sqrt(sum(norm * norm for norm in each.norms.values() if norm is not None)))
        for each in record.gradients
    ]


def _source(directory: Path, where: str) -> str:
    """Return the source line that `where` names; "" if it cannot be read."""
    name, _, number = where.rpartition(":")
    try:
        lines = (directory / name).read_text(encoding="utf-8").splitlines()
        return lines[int(number) - 1].strip()
    except (OSError, ValueError, IndexError):
        return ""
